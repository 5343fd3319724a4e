#define CLOISTER_ISA avx2
#define CLOISTER_NAME "avx2"
#define CLOISTER_LANES 8
#define CLOISTER_REGISTERS 16
#include "lanes.inl"
