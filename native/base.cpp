// What every machine of a kind can run.
#define CLOISTER_ISA base
#define CLOISTER_LANES 4
#if defined(__aarch64__)
#define CLOISTER_NAME "neon"
#define CLOISTER_REGISTERS 32
#else
#define CLOISTER_NAME "sse2"
#define CLOISTER_REGISTERS 16
#endif
#include "lanes.inl"
