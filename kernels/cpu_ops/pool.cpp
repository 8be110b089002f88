#include "pool.h"

#include <algorithm>
#include <chrono>

namespace {

constexpr auto kSpin = std::chrono::nanoseconds(20'000), kShortest = std::chrono::nanoseconds(1'000);
constexpr unsigned kProbe = 16;
constexpr uint64_t kClosed = 0xffffffffu;  // a slice number that no job has

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// How long one thread spins before it sleeps. Where the thread it waits for cannot run meanwhile, because it shares the core,
// no spin ever succeeds and each only costs time: so a spin in vain halves the next one, and one in some is as long as ever,
// to see whether that has changed.
class Patience {
  public:
    template <typename Ready>
    bool spin_until(const Ready& ready) {
        if (ready()) return true;
        const auto limit = ++waits_ % kProbe == 0 ? kSpin : limit_;
        const auto end = std::chrono::steady_clock::now() + limit;
        do {
            for (int i = 0; i < 16; ++i) {
                relax();
                if (ready()) {
                    limit_ = kSpin;
                    return true;
                }
            }
        } while (std::chrono::steady_clock::now() < end);
        limit_ = std::max(limit_ / 2, kShortest);
        return ready();
    }

  private:
    std::chrono::nanoseconds limit_ = kSpin;
    unsigned waits_ = 0;
};

}  // namespace

Pool& Pool::instance() {
    static Pool pool;
    return pool;
}

void Pool::resize(int threads) {
    stop();
    job_.stopping = false;
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

Pool::~Pool() { stop(); }

void Pool::stop() {
    job_.stopping = true;
    job_.posted.fetch_add(1);
    job_.posted.notify_all();
    for (auto& worker : workers_) worker.join();
    workers_.clear();
}

void Pool::run_slices(int count, Call call, const void* context) {
    // The new job number comes first, closed: a worker that still holds the last job's ticket then cannot claim a slice while
    // the fields below change under it. Everything up to the open ticket needs no order but that one's release.
    const uint64_t job = ((job_.ticket.load(std::memory_order_relaxed) >> 32) + 1) << 32;
    job_.ticket.exchange(job | kClosed);
    job_.ended.store(0, std::memory_order_relaxed);
    job_.call.store(call, std::memory_order_relaxed);
    job_.context.store(context, std::memory_order_relaxed);
    job_.count.store(count, std::memory_order_relaxed);
    job_.ticket.store(job, std::memory_order_release);
    job_.posted.fetch_add(1);
    if (job_.sleeping.load() > 0) job_.posted.notify_all();
    while (take_one()) {
    }
    static Patience patience;  // of the one thread that posts jobs
    if (patience.spin_until([&] { return job_.ended.load(std::memory_order_acquire) == count; })) return;
    for (int seen = job_.ended.load(); seen != count; seen = job_.ended.load()) job_.ended.wait(seen);
}

bool Pool::take_one() {
    uint64_t ticket = job_.ticket.load(std::memory_order_acquire);
    for (;;) {
        const auto slice = static_cast<uint32_t>(ticket);
        const int count = job_.count.load(std::memory_order_relaxed);
        const Call call = job_.call.load(std::memory_order_relaxed);
        const void* context = job_.context.load(std::memory_order_relaxed);
        if (slice >= static_cast<uint32_t>(count)) return false;
        // An unchanged ticket says that the fields belong to it: they change only behind a closed one.
        if (!job_.ticket.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire))
            continue;
        call(context, static_cast<int>(slice));
        if (job_.ended.fetch_add(1) + 1 == count) job_.ended.notify_one();
        return true;
    }
}

void Pool::work() {
    uint32_t seen = 0;
    Patience patience;
    for (;;) {
        while (take_one()) {
        }
        if (job_.stopping) return;
        const auto posted = [&] { return job_.posted.load(std::memory_order_acquire) != seen; };
        if (!patience.spin_until(posted)) {
            job_.sleeping.fetch_add(1);
            job_.posted.wait(seen);
            job_.sleeping.fetch_sub(1);
        }
        seen = job_.posted.load();
    }
}

extern "C" void pz_set_threads(int threads) { Pool::instance().resize(threads); }
