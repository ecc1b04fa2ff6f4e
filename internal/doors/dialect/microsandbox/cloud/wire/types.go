package wire

// The types of messages.
const (
	TypeReady      = "core.ready"
	TypeExec       = "core.exec.request"
	TypeStarted    = "core.exec.started"
	TypeStdin      = "core.exec.stdin"
	TypeStdinError = "core.exec.stdin.error"
	TypeStdout     = "core.exec.stdout"
	TypeStderr     = "core.exec.stderr"
	TypeExited     = "core.exec.exited"
	TypeExecFailed = "core.exec.failed"
	TypeResize     = "core.exec.resize"
	TypeSignal     = "core.exec.signal"
	TypeFS         = "core.fs.request"
	TypeFSData     = "core.fs.data"
	TypeFSResponse = "core.fs.response"
	TypeTCPConnect = "core.tcp.connect"
	TypeTCPOpen    = "core.tcp.connected"
	TypeTCPData    = "core.tcp.data"
	TypeTCPEOF     = "core.tcp.eof"
	TypeTCPClose   = "core.tcp.close"
	TypeTCPClosed  = "core.tcp.closed"
	TypeTCPFailed  = "core.tcp.failed"
	TypeError      = "core.error"
	TypePing       = "core.ping"
	TypePong       = "core.pong"
	TypeTouch      = "core.touch"
	TypeTouched    = "core.touched"
)

// Ready says that the guest accepts requests.
type Ready struct {
	BootTime  uint64 `cbor:"boot_time_ns"`
	InitTime  uint64 `cbor:"init_time_ns"`
	ReadyTime uint64 `cbor:"ready_time_ns"`
	Version   string `cbor:"agent_version,omitempty"`
}

// Rlimit is a limit of a command's processes.
type Rlimit struct {
	Resource string `cbor:"resource"`
	Soft     uint64 `cbor:"soft"`
	Hard     uint64 `cbor:"hard"`
}

// Exec requests a command. Env holds pairs NAME=VALUE.
type Exec struct {
	Cmd     string   `cbor:"cmd"`
	Args    []string `cbor:"args"`
	Env     []string `cbor:"env"`
	Cwd     *string  `cbor:"cwd"`
	User    *string  `cbor:"user"`
	TTY     bool     `cbor:"tty"`
	Rows    uint16   `cbor:"rows"`
	Cols    uint16   `cbor:"cols"`
	Rlimits []Rlimit `cbor:"rlimits"`
}

// Started says that a command is running.
type Started struct {
	PID uint32 `cbor:"pid"`
}

// Data is a piece of a stream. An empty piece is the end, for types that say so.
type Data struct {
	Data []byte `cbor:"data"`
}

// StdinError says that a command has not accepted input.
type StdinError struct {
	Message string `cbor:"message"`
}

// Exited says how a command has ended.
type Exited struct {
	Code int32 `cbor:"code"`
}

// ExecFailed says why a command did not run.
type ExecFailed struct {
	Kind    string `cbor:"kind"`
	Message string `cbor:"message"`
	Stage   string `cbor:"stage,omitempty"`
}

// Resize changes the size of a terminal.
type Resize struct {
	Rows uint16 `cbor:"rows"`
	Cols uint16 `cbor:"cols"`
}

// Signal sends a signal to a command.
type Signal struct {
	Signal int32 `cbor:"signal"`
}

// FS requests an operation on files.
type FS struct {
	Op Op `cbor:"op"`
}

// Op is an operation on files: exactly one field is set.
type Op struct {
	Stat        *PathOp   `cbor:"Stat,omitempty"`
	List        *PathOp   `cbor:"List,omitempty"`
	RealPath    *PathOp   `cbor:"RealPath,omitempty"`
	ReadLink    *PathOp   `cbor:"ReadLink,omitempty"`
	Mkdir       *PathOp   `cbor:"Mkdir,omitempty"`
	Remove      *PathOp   `cbor:"Remove,omitempty"`
	RemoveDir   *PathOp   `cbor:"RemoveDir,omitempty"`
	Copy        *PairOp   `cbor:"Copy,omitempty"`
	Rename      *PairOp   `cbor:"Rename,omitempty"`
	Symlink     *LinkOp   `cbor:"Symlink,omitempty"`
	SetStat     *PathOp   `cbor:"SetStat,omitempty"`
	FSetStat    *HandleOp `cbor:"FSetStat,omitempty"`
	OpenFile    *OpenOp   `cbor:"OpenFile,omitempty"`
	OpenDir     *PathOp   `cbor:"OpenDir,omitempty"`
	ReadDir     *HandleOp `cbor:"ReadDir,omitempty"`
	FStat       *HandleOp `cbor:"FStat,omitempty"`
	Read        *HandleOp `cbor:"Read,omitempty"`
	Write       *HandleOp `cbor:"Write,omitempty"`
	CloseHandle *HandleOp `cbor:"CloseHandle,omitempty"`
}

// PathOp is an operation on the file at a path.
type PathOp struct {
	Path          string  `cbor:"path"`
	FollowSymlink *bool   `cbor:"follow_symlink,omitempty"`
	Mode          *uint32 `cbor:"mode,omitempty"`
	Recursive     bool    `cbor:"recursive,omitempty"`
	Attrs         Attrs   `cbor:"attrs,omitempty"`
}

// PairOp is an operation from one path to another.
type PairOp struct {
	Src string `cbor:"src"`
	Dst string `cbor:"dst"`
}

// LinkOp makes a symbolic link.
type LinkOp struct {
	Target string `cbor:"target"`
	Path   string `cbor:"link_path"`
}

// OpenOp opens a file.
type OpenOp struct {
	Path    string      `cbor:"path"`
	Options OpenOptions `cbor:"options"`
}

// OpenOptions say how a file is opened.
type OpenOptions struct {
	Read      bool    `cbor:"read"`
	Write     bool    `cbor:"write"`
	Append    bool    `cbor:"append"`
	Create    bool    `cbor:"create"`
	Truncate  bool    `cbor:"truncate"`
	CreateNew bool    `cbor:"create_new"`
	Mode      *uint32 `cbor:"mode"`
}

// HandleOp is an operation on a handle.
type HandleOp struct {
	Handle uint64  `cbor:"handle"`
	Offset uint64  `cbor:"offset,omitempty"`
	Len    *uint64 `cbor:"len,omitempty"`
	Limit  *uint64 `cbor:"limit,omitempty"`
	Attrs  Attrs   `cbor:"attrs,omitempty"`
}

// Attrs are attributes to set on a file. Times are in seconds.
type Attrs struct {
	Mode  *uint32 `cbor:"mode"`
	UID   *uint32 `cbor:"uid"`
	GID   *uint32 `cbor:"gid"`
	Size  *uint64 `cbor:"size"`
	Atime *int64  `cbor:"atime"`
	Mtime *int64  `cbor:"mtime"`
}

// The kinds of a file.
const (
	KindFile    = "file"
	KindDir     = "dir"
	KindSymlink = "symlink"
	KindOther   = "other"
)

// Info describes a file. Times are in seconds.
type Info struct {
	Path     string `cbor:"path"`
	Kind     string `cbor:"kind"`
	Size     uint64 `cbor:"size"`
	Mode     uint32 `cbor:"mode"`
	Modified *int64 `cbor:"modified"`
	UID      uint32 `cbor:"uid"`
	GID      uint32 `cbor:"gid"`
	Mtime    *int64 `cbor:"mtime"`
}

// FSResponse is the result of an operation on files.
type FSResponse struct {
	OK    bool    `cbor:"ok"`
	Error *string `cbor:"error"`
	// Data is nil, or a map with one entry, whose key is the type of the data.
	Data map[string]any `cbor:"data"`
}

// TCPConnect requests a connection to a port, by the name that a program in the guest would
// use.
type TCPConnect struct {
	Host string `cbor:"host"`
	Port uint16 `cbor:"port"`
}

// TCPFailed says why there is no connection.
type TCPFailed struct {
	Error string `cbor:"error"`
}

// Touched is the answer to a touch: it counts the uses of a sandbox.
type Touched struct {
	Seq uint64 `cbor:"activity_seq"`
}

// The kinds of [Error].
const (
	ErrorMalformed   = "malformed_message"
	ErrorUnsupported = "unsupported_message_type"
	ErrorFlags       = "invalid_flags"
	ErrorPayload     = "invalid_payload"
	ErrorSession     = "invalid_session"
)

// Error reports an error in a frame. It ends the frame's session.
type Error struct {
	Kind      string `cbor:"kind"`
	Message   string `cbor:"message"`
	Offending string `cbor:"offending_type,omitempty"`
}
