// The threads of the kernels. Work is cut into small slices that whoever is free claims, so a thread that the system takes
// away holds up one slice, not the whole. Waiting spins for some 20 microseconds, then sleeps: beside a busy process or a
// second engine a longer spin costs many times what it saves.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

class Pool {
  public:
    static Pool& instance();

    // Threads that take part, the caller's among them.
    void resize(int threads);
    int size() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls body(0) to body(count - 1), in any order, on any thread; returns when all are done. A single slice, and every
    // slice of a pool without workers, runs on the caller's thread and costs nothing more than the call.
    template <typename Body>
    void run(int count, const Body& body) {
        if (count <= 1 || workers_.empty()) {
            for (int i = 0; i < count; ++i) body(i);
            return;
        }
        auto call = [](const void* context, int index) { (*static_cast<const Body*>(context))(index); };
        run_slices(count, call, &body);
    }

    ~Pool();

  private:
    using Call = void (*)(const void*, int);
    void run_slices(int count, Call call, const void* context);
    bool take_one();  // runs one slice of the present job; false when none is left
    void work();      // a worker's life
    void stop();

    // All of a job on one cache line: what a fork and a join cost is how often a line moves between cores, and apart from
    // each other these take half again as long.
    struct alignas(64) Job {
        std::atomic<uint64_t> ticket{0};  // job number << 32 | next slice
        std::atomic<Call> call{nullptr};
        std::atomic<const void*> context{nullptr};
        std::atomic<int> count{0}, ended{0};  // slices
        std::atomic<uint32_t> posted{0};      // jobs so far: what sleeping workers wait on
        std::atomic<int> sleeping{0};
        std::atomic<bool> stopping{false};
    };
    Job job_;
    std::vector<std::thread> workers_;
};
