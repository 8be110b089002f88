// One signature for every op: its arguments in one piece of memory, as Python packed them. That is what lets a whole step be
// kept as a list of (function, arguments) and run again in one call (tape.cpp).
// The arguments lie one after the other, each at a multiple of its size: pointers, then ints, then floats.
#pragma once
#include <cstddef>
#include <cstring>
#include <tuple>

using Packed = void (*)(const char* arguments);

namespace packed {

class Reader {
  public:
    explicit Reader(const char* arguments) : at_(arguments), begin_(arguments) {}

    template <typename T>
    T next() {
        at_ = begin_ + (size_t(at_ - begin_) + sizeof(T) - 1) / sizeof(T) * sizeof(T);
        T value;
        std::memcpy(&value, at_, sizeof value);
        at_ += sizeof value;
        return value;
    }

  private:
    const char *at_, *begin_;
};

template <typename... Ts>
void call(void (*function)(Ts...), const char* arguments) {
    Reader reader(arguments);
    const std::tuple<Ts...> values{reader.next<Ts>()...};  // braces: from left to right
    std::apply(function, values);
}

}  // namespace packed

// Exports a function, or one instance of a template, with its arguments packed. To be used inside extern "C" { }.
#define PACKED(name, ...) \
    void name(const char* arguments) { packed::call(__VA_ARGS__, arguments); }
