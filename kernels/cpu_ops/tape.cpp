// A recorded step: calls of ops with the arguments they had, run again in their order.
#include "packed.h"

// Filled by tape.py, field by field in this order.
struct TapeCall {
    Packed function;
    const char* arguments;
};

extern "C" void pz_run_tape(const TapeCall* calls, int count) {
    for (int i = 0; i < count; ++i) calls[i].function(calls[i].arguments);
}
