package kernel

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Pipe makes a pipe. It returns the end with index mine (0 reads, 1 writes), which
// is non-blocking, and the other end, which blocks, as programs expect.
func Pipe(mine int) (own, other *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	if err := unix.SetNonblock(p[mine], true); err != nil {
		_, _ = unix.Close(p[0]), unix.Close(p[1])
		return nil, nil, err
	}
	return os.NewFile(uintptr(p[mine]), "pipe"), os.NewFile(uintptr(p[1-mine]), "pipe"), nil
}

// Pipes are the files of a process that is being started: this process's ends and
// the child's.
type Pipes struct{ Own, Child []*os.File }

// Add makes a pipe, as [Pipe] does.
func (p *Pipes) Add(mine int) (own, child *os.File, err error) {
	if own, child, err = Pipe(mine); err == nil {
		p.Own, p.Child = append(p.Own, own), append(p.Child, child)
	}
	return own, child, err
}

// addShared makes a file in memory that both processes have open. The child can only read
// it by its descriptor.
func (p *Pipes) addShared(name string) (own, child *os.File, err error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, err
	}
	own = os.NewFile(uintptr(fd), name)
	p.Own = append(p.Own, own)
	if child, err = os.Open(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil {
		p.Child = append(p.Child, child)
	}
	return own, child, err
}

// Close closes the child's ends, which the child has by now, and, if err (the error of the
// start) is not nil, also this process's.
func (p *Pipes) Close(err error) {
	closeAll(p.Child)
	if err != nil {
		closeAll(p.Own)
	}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
