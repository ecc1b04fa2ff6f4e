package sandbox

// CheckStatus is the result of a check of a machine.
type CheckStatus string

// The results of checks.
const (
	CheckOK   CheckStatus = "ok"
	CheckWarn CheckStatus = "warn" // sandboxes run, with something missing or weaker
	CheckFail CheckStatus = "fail" // sandboxes cannot run
)

// MachineCheck is one property of a machine that was checked.
type MachineCheck struct {
	Name   string      `json:"name"`
	Status CheckStatus `json:"status"`
	// Detail says what was found.
	Detail string `json:"detail"`
	// Fix says what to do about it, or with CheckOK, how to improve the machine
	// further; empty if there is nothing to do.
	Fix string `json:"fix,omitempty"`
}

// MachineLimit is a limit of sandboxes, and how a machine enforces it.
type MachineLimit struct {
	Name string `json:"name"`
	// Enforced says that the host's kernel, or gVisor's, enforces the limit whatever
	// the sandbox does.
	Enforced bool   `json:"enforced"`
	How      string `json:"how"`
}

// MachineReport says what a machine lets Cove do.
type MachineReport struct {
	// OK is false if sandboxes cannot run there at all.
	OK     bool           `json:"ok"`
	Checks []MachineCheck `json:"checks"`
	Limits []MachineLimit `json:"limits"`
}
