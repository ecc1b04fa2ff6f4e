package x11

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// shmServer answers MIT-SHM requests. It refuses to attach memory, or reports the memory's
// size to sizes.
func shmServer(nc *net.UnixConn, version uint16, refuses bool, sizes chan<- int64) {
	defer nc.Close()
	const opcode = 140
	var in []byte
	var files []int
	defer func() {
		for _, fd := range files {
			_ = unix.Close(fd)
		}
	}()
	read := func(n int) []byte {
		for len(in) < n {
			buf, oob := make([]byte, 1<<10), make([]byte, 256)
			n, oobn, _, _, err := nc.ReadMsgUnix(buf, oob)
			if err != nil || n == 0 {
				return nil
			}
			in = append(in, buf[:n]...)
			messages, _ := unix.ParseSocketControlMessage(oob[:oobn])
			for _, m := range messages {
				fds, _ := unix.ParseUnixRights(&m)
				files = append(files, fds...)
			}
		}
		b := in[:n]
		in = in[n:]
		return b
	}
	if read(12) == nil {
		return
	}
	_, _ = nc.Write(setupReply())
	for seq := uint16(1); ; seq++ {
		head := read(4)
		if head == nil {
			return
		}
		major, minor := head[0], head[1]
		body := read(4*int(binary.LittleEndian.Uint16(head[2:])) - 4)
		answer := reply(seq, 0)
		switch {
		case major == 8, major == opcode && minor == 2:
			continue // they have no reply
		case major == 98:
			answer[8], answer[9] = 1, opcode
		case major == opcode && minor == 0:
			binary.LittleEndian.PutUint16(answer[8:], 1)
			binary.LittleEndian.PutUint16(answer[10:], version)
		case major == opcode && minor == 6:
			if refuses || len(files) != 1 {
				answer = make([]byte, 32)
				answer[1], answer[10] = 10, opcode
				binary.LittleEndian.PutUint16(answer[2:], seq)
				break
			}
			var st unix.Stat_t
			_ = unix.Fstat(files[0], &st)
			sizes <- st.Size
			continue
		case major == opcode && minor == 4:
			binary.LittleEndian.PutUint32(answer[12:], binary.LittleEndian.Uint32(body[20:])) // the segment, as good as any number
		}
		_, _ = nc.Write(answer)
	}
}

func shmConn(t *testing.T, version uint16, refuses bool) (*Conn, <-chan int64) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		nc, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = nc.(*net.UnixConn)
	}
	sizes, ended := make(chan int64, 1), make(chan struct{})
	go func() {
		defer close(ended)
		shmServer(ends[1], version, refuses, sizes)
	}()
	c, err := Connect(t.Context(), ends[0], func(*Event) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		<-ended
	})
	return c, sizes
}

// TestSharedMemory has a server take memory by its descriptor, and one refuse it.
func TestSharedMemory(t *testing.T) {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 12345); err != nil {
		t.Fatal(err)
	}
	for name, refuses := range map[string]bool{"taken": false, "refused": true} {
		t.Run(name, func(t *testing.T) {
			c, sizes := shmConn(t, 2, refuses)
			shm, err := c.Shm(t.Context())
			if err != nil || shm.Opcode == 0 {
				t.Fatalf("the extension is %+v, %v", shm, err)
			}
			c.MapWindow(7) // goes in one write with what follows
			segment, r := c.AttachShm(shm, fd)
			_, err = r.Wait(t.Context())
			if _, ok := errors.AsType[*Error](err); ok != refuses || !refuses && err != nil {
				t.Fatalf("attached: %v", err)
			}
			if refuses {
				return
			}
			if got := <-sizes; got != 12345 {
				t.Errorf("the server got %d bytes", got)
			}
			b, err := c.GetShmImage(shm, 0, 0, 1, 1, segment).Wait(t.Context())
			if err != nil || ShmImageSize(b) != int(segment) {
				t.Errorf("asked for a picture in segment %d: %v, %v", segment, b, err)
			}
			c.DetachShm(shm, segment)
			if err := c.Sync(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("too old", func(t *testing.T) {
		c, _ := shmConn(t, 1, false)
		if shm, err := c.Shm(t.Context()); err != nil || shm.Opcode != 0 {
			t.Errorf("a server that takes no descriptors: %+v, %v", shm, err)
		}
	})
}
