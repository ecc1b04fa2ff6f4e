//go:build linux

// Command attacker is what the tests of package escape run inside sandboxes. It
// prints what it could do, one line each; the tests decide what that means.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

var attacks = map[string]func(args []string){
	"dial":     dial,
	"hunt":     hunt,
	"syscalls": syscalls,
	"spoof":    spoof,
	"agent":    agent,
	"flood":    flood,
	"hold":     hold,
}

func init() { attacks["userns"] = userns } // it calls main's others

func main() {
	if len(os.Args) < 2 || attacks[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: attacker ATTACK [ARG...]")
		os.Exit(2)
	}
	attacks[os.Args[1]](os.Args[2:])
}

// userns runs another attack as root of a new user namespace, which any user can make.
func userns(args []string) {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	if err := cmd.Run(); err != nil {
		result("userns", err)
	}
}

// result prints "name: ok" or "name: the error".
func result(name string, err error) {
	if err == nil {
		fmt.Printf("%s: ok\n", name)
		return
	}
	text := err.Error()
	if e, ok := errors.AsType[unix.Errno](err); ok {
		text = unix.ErrnoName(e)
	}
	fmt.Printf("%s: %s\n", name, text)
}

// dial tries to connect to each of network!address, and prints those that
// accepted a connection.
func dial(args []string) {
	var wg sync.WaitGroup
	tickets := make(chan struct{}, 256)
	for _, arg := range args {
		network, address, ok := strings.Cut(arg, "!")
		if !ok {
			continue
		}
		tickets <- struct{}{}
		wg.Go(func() {
			defer func() { <-tickets }()
			conn, err := net.DialTimeout(network, address, 3*time.Second)
			if err != nil {
				return
			}
			conn.Close()
			fmt.Printf("connected to %s\n", arg)
		})
	}
	wg.Wait()
	fmt.Println("tried", len(args))
}

// hunt looks for the texts in every name and file that it can read, those of
// the machine's programs and libraries excepted.
func hunt(texts []string) {
	seen := 0
	_ = filepath.WalkDir("/", func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if path == "/usr" || strings.HasPrefix(path, "/proc/") && strings.Count(path, "/") > 2 && strings.Contains(path, "/task") {
			return filepath.SkipDir
		}
		seen++
		report := func(where, text string) { fmt.Printf("found %s in %s of %s\n", text, where, path) }
		for _, text := range texts {
			if strings.Contains(e.Name(), text) {
				report("the name", text)
			}
			if target, err := os.Readlink(path); err == nil && strings.Contains(target, text) {
				report("the target", text)
			}
		}
		if !e.Type().IsRegular() || path == "/proc/self/cmdline" || path == fmt.Sprintf("/proc/%d/cmdline", os.Getpid()) {
			return nil
		}
		data := contents(path)
		for _, text := range texts {
			if bytes.Contains(data, []byte(text)) {
				report("the content", text)
			}
		}
		return nil
	})
	fmt.Println("looked at", seen)
}

// contents reads the beginning of a file that may block or never end.
func contents(path string) []byte {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	_ = f.SetReadDeadline(time.Now().Add(time.Second))
	data, _ := io.ReadAll(io.LimitReader(f, 1<<20))
	// The attacker's own arguments contain what it looks for.
	if bytes.Contains(data, []byte("\x00hunt\x00")) {
		return nil
	}
	return data
}

// syscalls tries what would reach the host's kernel or hardware.
func syscalls([]string) {
	null := uintptr(0)
	raw := func(name string, nr uintptr, a ...uintptr) {
		var args [6]uintptr
		copy(args[:], a)
		_, _, errno := unix.Syscall6(nr, args[0], args[1], args[2], args[3], args[4], args[5])
		if errno == 0 {
			result(name, nil)
			return
		}
		result(name, errno)
	}
	text := func(s string) uintptr { return uintptr(unsafe.Pointer(unsafe.StringData(s + "\x00"))) }
	raw("init_module", unix.SYS_INIT_MODULE, null, 0, text(""))
	raw("finit_module", unix.SYS_FINIT_MODULE, 0, text(""), 0)
	raw("delete_module", unix.SYS_DELETE_MODULE, text("veth"), 0)
	raw("kexec_load", unix.SYS_KEXEC_LOAD, 0, 0, null, 0)
	raw("swapon", unix.SYS_SWAPON, text("/workspace/x"), 0)
	raw("acct", unix.SYS_ACCT, text("/workspace/x"))
	raw("perf_event_open", unix.SYS_PERF_EVENT_OPEN, null, 0, 0, 0, 0)
	attr := make([]byte, 128)
	attr[0], attr[4], attr[8], attr[12] = 1, 4, 4, 1 // an array map
	raw("bpf", unix.SYS_BPF, 0, uintptr(unsafe.Pointer(&attr[0])), uintptr(len(attr)))
	raw("open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, ^uintptr(99), uintptr(unsafe.Pointer(&attr[0])), 0)
	raw("fanotify_init", unix.SYS_FANOTIFY_INIT, 0, 0)
	raw("syslog", unix.SYS_SYSLOG, 5, 0, 0) // clear the kernel's log
	tv := unix.Timeval{Sec: 1}
	raw("settimeofday", unix.SYS_SETTIMEOFDAY, uintptr(unsafe.Pointer(&tv)), 0)
	raw("reboot", unix.SYS_REBOOT, unix.LINUX_REBOOT_MAGIC1, unix.LINUX_REBOOT_MAGIC2, unix.LINUX_REBOOT_CMD_RESTART, 0)
	for _, dev := range []struct {
		name         string
		kind         uint32
		major, minor uint32
	}{
		{"mem", unix.S_IFCHR, 1, 1}, {"kmsg", unix.S_IFCHR, 1, 11}, {"sda", unix.S_IFBLK, 8, 0}, {"vda", unix.S_IFBLK, 254, 0},
		{"nvme", unix.S_IFBLK, 259, 0}, {"loop", unix.S_IFBLK, 7, 0}, {"kvm", unix.S_IFCHR, 10, 232}, {"rtc", unix.S_IFCHR, 254, 0},
	} {
		path := "/tmp/node-" + dev.name
		if err := unix.Mknod(path, dev.kind|0o600, int(unix.Mkdev(dev.major, dev.minor))); err != nil {
			result("device "+dev.name, err)
			continue
		}
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK, 0)
		if err == nil {
			unix.Close(fd)
		}
		result("device "+dev.name, err)
	}
	for _, m := range []struct{ kind, source string }{{"ext4", "/dev/sda1"}, {"ext4", "/dev/vda1"}, {"xfs", "/dev/vda1"}, {"nfs", "127.0.0.1:/"}, {"debugfs", "d"}, {"securityfs", "s"}, {"bpf", "b"}, {"tracefs", "t"}} {
		_ = os.MkdirAll("/tmp/mnt", 0o700)
		err := unix.Mount(m.source, "/tmp/mnt", m.kind, 0, "")
		if err == nil {
			_ = unix.Unmount("/tmp/mnt", 0)
		}
		result("mount "+m.kind, err)
	}
}

// gateway is the cell's address, the only one that the agent listens to.
var gateway = netip.MustParseAddr("169.254.77.1")

// spoof tries to send packets with addresses that are not the sandbox's own.
func spoof([]string) {
	_, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	result("raw socket", err)
	_, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0x0300)
	result("packet socket", err)
	out, err := exec.Command("ip", "addr", "add", gateway.String()+"/32", "dev", "lo").CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("not permitted")) {
		fmt.Printf("take the gateway's address: %v %s\n", err, bytes.TrimSpace(out))
	}
	result("connect from the gateway's address", fromGateway())
}

// fromGateway connects to the agent from the gateway's address.
func fromGateway() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_ = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_FREEBIND, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: gateway.As4()}); err != nil {
		return err
	}
	return unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{169, 254, 77, 2}, Port: 7007})
}

// agent tries to use, end, change and replace the agent.
func agent([]string) {
	result("talk", talk())
	for _, s := range []unix.Signal{unix.SIGSTOP, unix.SIGTERM, unix.SIGKILL} {
		result("signal "+unix.SignalName(s), unix.Kill(1, s))
	}
	result("trace", unix.PtraceAttach(1))
	var word [8]byte
	local := []unix.Iovec{{Base: &word[0], Len: 8}}
	_, err := unix.ProcessVMReadv(1, local, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
	result("read memory", err)
	for _, path := range []string{"/proc/1/mem", "/.cove/agent", "/.cove/new", "/proc/1/root/.cove/agent"} {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o755)
		if err == nil {
			f.Close()
		}
		result("write "+path, err)
	}
	result("remove", os.Remove("/.cove/agent"))
	result("rename", os.Rename("/.cove", "/tmp/cove"))
	_, err = os.ReadDir("/proc/1/fd")
	result("descriptors", err)
	_, err = os.ReadFile("/proc/1/environ")
	result("environment", err)
}

// talk asks the agent for its health, as its own client would.
func talk() error {
	conn, err := net.DialTimeout("tcp", "169.254.77.2:7007", 3*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	const body = "{}"
	_, err = fmt.Fprintf(conn, "POST /cove.agent.v1.Agent/Health HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	if err != nil {
		return err
	}
	n, err := conn.Read(make([]byte, 1024))
	if n > 0 {
		return nil
	}
	return err
}

// flood writes to the first process's standard output, which is the cell's log.
func flood([]string) {
	for _, path := range []string{"/proc/1/fd/1", "/proc/1/fd/2"} {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			result("open "+path, err)
			continue
		}
		n := 0
		for range 128 {
			m, err := f.Write(bytes.Repeat([]byte("flood of the log\n"), 8<<10))
			n += m
			if err != nil {
				break
			}
		}
		f.Close()
		fmt.Printf("wrote %d to %s\n", n, path)
	}
}
