#define CLOISTER_ISA avx512
#define CLOISTER_NAME "avx512"
#define CLOISTER_LANES 16
#define CLOISTER_REGISTERS 32
#include "lanes.inl"
