#include "pool.h"

#include <chrono>

namespace {

constexpr auto kSpin = std::chrono::microseconds(20);
constexpr uint64_t kClosed = 0xffffffffu;  // a slice number that no job has

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

template <typename Ready>
bool spin_until(const Ready& ready) {
    const auto end = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int i = 0; i < 64; ++i) {
            if (ready()) return true;
            relax();
        }
    } while (std::chrono::steady_clock::now() < end);
    return ready();
}

}  // namespace

Pool& Pool::instance() {
    static Pool pool;
    return pool;
}

void Pool::resize(int threads) {
    stop();
    stopping_ = false;
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

Pool::~Pool() { stop(); }

void Pool::stop() {
    stopping_ = true;
    posted_.fetch_add(1);
    posted_.notify_all();
    for (auto& worker : workers_) worker.join();
    workers_.clear();
}

void Pool::run_slices(int count, Call call, const void* context) {
    if (count <= 0) return;
    if (workers_.empty() || count == 1) {
        for (int i = 0; i < count; ++i) call(context, i);
        return;
    }
    // The new job number comes first, closed: a worker that still holds the last job's ticket then cannot claim a slice while
    // the fields below change under it.
    const uint64_t job = ((ticket_.load() >> 32) + 1) << 32;
    ticket_ = job | kClosed;
    done_ = 0;
    call_ = call;
    context_ = context;
    count_ = count;
    ticket_ = job;
    posted_.fetch_add(1);
    if (sleeping_.load() > 0) posted_.notify_all();
    while (take_one()) {
    }
    if (spin_until([&] { return done_.load() == count; })) return;
    for (int seen = done_.load(); seen != count; seen = done_.load()) done_.wait(seen);
}

bool Pool::take_one() {
    uint64_t ticket = ticket_.load();
    for (;;) {
        const auto slice = static_cast<uint32_t>(ticket);
        const int count = count_.load();
        const Call call = call_.load();
        const void* context = context_.load();
        if (slice >= static_cast<uint32_t>(count)) return false;
        if (!ticket_.compare_exchange_weak(ticket, ticket + 1)) continue;
        call(context, static_cast<int>(slice));
        if (done_.fetch_add(1) + 1 == count) done_.notify_one();
        return true;
    }
}

void Pool::work() {
    uint32_t seen = 0;
    for (;;) {
        while (take_one()) {
        }
        if (stopping_) return;
        const auto posted = [&] { return posted_.load() != seen; };
        if (!spin_until(posted)) {
            sleeping_.fetch_add(1);
            posted_.wait(seen);
            sleeping_.fetch_sub(1);
        }
        seen = posted_.load();
    }
}

extern "C" void pz_set_threads(int threads) { Pool::instance().resize(threads); }
