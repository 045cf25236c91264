#include "textflag.h"

TEXT jumpToClockGettime<>(SB), NOSPLIT, $0-0
	JMP	libc_clock_gettime(SB)

GLOBL	·clockGettime(SB), RODATA, $8
DATA	·clockGettime(SB)/8, $jumpToClockGettime<>(SB)
