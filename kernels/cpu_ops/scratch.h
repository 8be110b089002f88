// Memory that a thread keeps from call to call, so that a step asks the system for none.
#pragma once
#include <cstddef>
#include <memory>
#include <new>

template <typename T>
class Scratch {
  public:
    // Room for `count` elements from a multiple of 64 bytes on. They hold whatever was left there.
    T* at_least(size_t count) {
        if (count > count_) {
            memory_.reset(static_cast<T*>(::operator new(count * sizeof(T), kAlignment)));
            count_ = count;
        }
        return memory_.get();
    }
    T* data() const { return memory_.get(); }

  private:
    static constexpr std::align_val_t kAlignment{64};
    struct Free {
        void operator()(T* memory) const { ::operator delete(memory, kAlignment); }
    };

    std::unique_ptr<T[], Free> memory_;
    size_t count_ = 0;
};
