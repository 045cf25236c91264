package leasehold

import (
	"syscall"
	"unsafe"
)

// bootMicroseconds reads CLOCK_BOOTTIME.
func bootMicroseconds() (int64, bool) {
	const clockBoottime = 7
	var time syscall.Timespec
	_, _, err := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&time)), 0)
	return time.Nano() / 1_000, err == 0
}
