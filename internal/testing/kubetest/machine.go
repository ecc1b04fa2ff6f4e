package kubetest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A machine is a process in namespaces of its own, of which it is the first process. With
// it, the kernel ends all that it started, and its mounts and links go.
type machine struct {
	Name string `json:"name"`
	// Binds are directories to mount elsewhere, as source and target.
	Binds [][2]string `json:"binds"`
	// Programs are started in this order.
	Programs []program `json:"programs"`
	// LogDir has a file for each program.
	LogDir string `json:"log_dir"`
	Path   string `json:"path"`

	cmd    *exec.Cmd
	ended  chan struct{}
	cgroup string
}

// program is started again when it ends. One that is to end is run until it succeeds, and
// only then comes the next.
type program struct {
	Args []string `json:"args"`
	Ends bool     `json:"ends"`
}

const (
	role = "kubetest-machine"
	// again is how long to wait before a program is started again.
	again = 300 * time.Millisecond
)

// start starts the machine. It waits for a line before it starts programs; see ready.
func (m *machine) start(file string) (ready func() error, err error) {
	data, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.MkdirAll(m.LogDir, 0o755), os.WriteFile(file, data, 0o600)); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(m.LogDir, "machine.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	m.cmd = exec.Command("/proc/self/exe", file)
	m.cmd.Args[0] = role
	m.cmd.Stdout, m.cmd.Stderr = log, log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC,
		Setsid:     true, Pdeathsig: unix.SIGKILL,
	}
	in, err := m.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error)
	m.ended = make(chan struct{})
	go func() {
		// The kernel sends Pdeathsig when the thread ends that started the process.
		runtime.LockOSThread()
		err := m.cmd.Start()
		started <- err
		if err == nil {
			_ = m.cmd.Wait()
		}
		close(m.ended)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", m.Name, err)
	}
	return func() error {
		_, err := io.WriteString(in, "go\n")
		return err
	}, nil
}

// stop ends the machine with all that runs on it.
func (m *machine) stop() {
	if m.cmd == nil || m.cmd.Process == nil {
		return
	}
	_ = m.cmd.Process.Kill()
	<-m.ended
}

// Main runs the part of a machine that the process may be, and does not return then. Tests
// call it first.
func Main() {
	if filepath.Base(os.Args[0]) != role {
		return
	}
	runtime.LockOSThread()
	err := beMachine(os.Args[1])
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func beMachine(file string) error {
	var m machine
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		return err
	}
	// Nothing that is mounted here appears on the host; containers see what is mounted here.
	for _, flags := range []uintptr{unix.MS_REC | unix.MS_PRIVATE, unix.MS_REC | unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", flags, ""); err != nil {
			return fmt.Errorf("separate mounts: %w", err)
		}
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Sethostname([]byte(m.Name)); err != nil {
		return err
	}
	for _, b := range m.Binds {
		if err := os.MkdirAll(b[1], 0o755); err != nil {
			return err
		}
		if err := unix.Mount(b[0], b[1], "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s at %s: %w", b[0], b[1], err)
		}
		if err := unix.Mount("", b[1], "", unix.MS_SHARED, ""); err != nil {
			return err
		}
	}
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return err
	}
	for _, p := range m.Programs {
		if p.Ends {
			m.run(p)
		} else {
			go m.run(p)
		}
	}
	select {}
}

// run runs a program again and again, or until it succeeds.
func (m *machine) run(p program) {
	for {
		log, err := os.OpenFile(filepath.Join(m.LogDir, filepath.Base(p.Args[0])+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err == nil {
			cmd := exec.CommandContext(context.Background(), p.Args[0], p.Args[1:]...)
			cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
			cmd.Env = []string{"PATH=" + m.Path, "HOME=/root"}
			err = cmd.Run()
			fmt.Fprintln(log, "ended:", err)
			log.Close()
		}
		if err == nil && p.Ends {
			return
		}
		time.Sleep(again)
	}
}
