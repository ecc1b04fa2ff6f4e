package sandbox

// CheckStatus is how a check of a machine came out.
type CheckStatus string

// The results of checks.
const (
	CheckOK   CheckStatus = "ok"
	CheckWarn CheckStatus = "warn" // something is less than it could be
	CheckFail CheckStatus = "fail" // sandboxes cannot run
)

// MachineCheck is one property of a machine that was checked.
type MachineCheck struct {
	Name   string      `json:"name"`
	Status CheckStatus `json:"status"`
	// Detail says what was found.
	Detail string `json:"detail"`
	// Fix says what to do about it, or with CheckOK, what would make the machine better
	// still; empty if there is nothing to do.
	Fix string `json:"fix,omitempty"`
}

// MachineLimit is a limit of sandboxes, and how a machine enforces it.
type MachineLimit struct {
	Name string `json:"name"`
	// Enforced is set if the host's kernel, or gVisor's, enforces the limit whatever
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
