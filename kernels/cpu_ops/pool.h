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

    // Calls body(0) to body(count - 1), in any order, on any thread; returns when all are done.
    template <typename Body>
    void run(int count, const Body& body) {
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

    std::vector<std::thread> workers_;
    std::atomic<uint64_t> ticket_{0};  // job number << 32 | next slice
    std::atomic<int> count_{0}, done_{0};
    std::atomic<Call> call_{nullptr};
    std::atomic<const void*> context_{nullptr};
    std::atomic<uint32_t> posted_{0};  // what sleeping workers wait on
    std::atomic<int> sleeping_{0};
    std::atomic<bool> stopping_{false};
};
