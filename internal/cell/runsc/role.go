package runsc

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cli/maincli"
)

// Limits describes the machine as programs in the sandbox see it.
type Limits struct {
	// MemoryBytes is the total memory.
	MemoryBytes int64 `json:"memory_bytes"`
	// CPUs is the number of processors.
	CPUs int `json:"cpus"`
}

// limitsFile is the file in the bundle directory with the [Limits]. gVisor itself takes
// them only from the host's cgroups, with a minimum of two processors. Passing them on
// its command line makes them correct without cgroups too.
const limitsFile = "limits.json"

// IsRole reports whether gVisor's code has started this process as one of its own, in
// which case [Main] must be called. gVisor executes the running binary again under names
// of its own, and once as "/proc/self/exe umount".
func IsRole(args []string) bool {
	if len(args) == 0 {
		return false
	}
	name := filepath.Base(args[0])
	if strings.HasPrefix(name, "runsc") || strings.HasPrefix(name, "gvisor_") {
		return true
	}
	return name == "exe" && len(args) > 1 && (args[1] == "umount" || strings.HasPrefix(args[1], "-") && slices.Contains(args, "gofer"))
}

// Main runs gVisor's command line on os.Args. It does not return.
func Main() {
	if err := mapSelf(); err != nil {
		fmt.Fprintln(os.Stderr, "map the user of gVisor's user namespace:", err)
		os.Exit(1)
	}
	if slices.Contains(os.Args, "gofer") {
		if err := askForOwners(bundleOf(os.Args)); err != nil {
			fmt.Fprintln(os.Stderr, "keep the owners of files in mounts:", err)
			os.Exit(1)
		}
	}
	if slices.Contains(os.Args, "boot") {
		go enableSignals()
	}
	os.Args = withLimits(os.Args, os.ReadFile)
	maincli.Main()
}

// enableSignals lets Go's runtime deliver the signals that gVisor forwards to the first
// process. Enabling a signal wakes up a thread twice, which takes about 0.5 ms. For all of them
// that is 15 ms, for which a restore would wait otherwise. Until gVisor forwards the signals,
// they have no effect, not even to end gVisor: only SIGKILL does that.
func enableSignals() {
	// Those of sighandling.StartSignalForwarding.
	const last = 33
	var all []os.Signal
	for sig := unix.Signal(1); sig <= last; sig++ {
		if sig != unix.SIGURG && sig != unix.SIGPIPE && sig != unix.SIGCHLD {
			all = append(all, sig)
		}
	}
	signal.Notify(make(chan os.Signal, 1), all...)
}

// withLimits adds the bundle's limits to the arguments of "boot". The process reads the
// bundle before it enters its empty root. When it executes itself again in that root, it
// cannot read the file, but its arguments already contain the limits.
func withLimits(args []string, readFile func(string) ([]byte, error)) []string {
	boot := slices.Index(args, "boot")
	if boot < 0 {
		return args
	}
	data, err := readFile(filepath.Join(bundleOf(args), limitsFile))
	if err != nil {
		return args
	}
	var l Limits
	if err := json.Unmarshal(data, &l); err != nil {
		return args
	}
	out := slices.Clone(args[:boot+1])
	out = append(out, "--cpu-num="+strconv.Itoa(l.CPUs), "--total-memory="+strconv.FormatInt(l.MemoryBytes, 10))
	for i := boot + 1; i < len(args); i++ {
		switch {
		case args[i] == "--total-memory" || args[i] == "--cpu-num":
			i++ // skip its value
		case strings.HasPrefix(args[i], "--total-memory="), strings.HasPrefix(args[i], "--cpu-num="):
		default:
			out = append(out, args[i])
		}
	}
	return out
}

// bundleOf returns the bundle directory in gVisor's arguments, or "".
func bundleOf(args []string) string {
	for i, a := range args {
		if dir, ok := strings.CutPrefix(a, "--bundle="); ok {
			return dir
		}
		if a == "--bundle" && i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}
