package leasehold

import (
	"syscall"
	"unsafe"
)

// On macOS, programs call the system only through its C library. The package syscall has no clock_gettime, so this file
// calls it in the way in which golang.org/x/sys calls functions of that library, without cgo.

//go:cgo_import_dynamic libc_clock_gettime clock_gettime "/usr/lib/libSystem.B.dylib"

//go:linkname syscallSyscall syscall.syscall
func syscallSyscall(function, a1, a2, a3 uintptr) (r1, r2 uintptr, err syscall.Errno)

// clockGettime is the address of a jump to clock_gettime, in clock_darwin.s.
var clockGettime uintptr

// bootMicroseconds reads CLOCK_MONOTONIC, which counts while the machine sleeps.
func bootMicroseconds() (int64, bool) {
	const clockMonotonic = 6
	var time syscall.Timespec
	_, _, err := syscallSyscall(clockGettime, clockMonotonic, uintptr(unsafe.Pointer(&time)), 0)
	return time.Nano() / 1_000, err == 0
}
