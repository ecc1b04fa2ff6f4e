package remote

import (
	"encoding/json"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// Report is what a node says about itself.
type Report struct {
	Protocol int
	// Version is Cove's.
	Version string
	// Capacity is what the node has, and the most that one sandbox can have.
	Capacity sandbox.Resources
	// Memory and disk that new sandboxes may use, and all of the disk, in bytes.
	FreeMemory, FreeDisk, Disk int64
	// Abilities of the node's engine.
	Checkpoints bool
	// Early says that checkpoints can be used there before they are complete.
	Early bool `json:",omitempty"`
	// Dedicated says that the node was started for the sandboxes of one family at a time. What
	// counts is what it said when it joined.
	Dedicated bool `json:",omitempty"`
}

// AsideAge is how long nodes keep checkpoints that were set aside.
const AsideAge = 8 * 24 * time.Hour

type empty struct{}

// token identifies a call that can be cancelled, within its connection.
type token struct{ Token int64 }

func (t *token) setToken(n int64) { t.Token = n }

// cancellable is a request with a token.
type cancellable interface{ setToken(int64) }

type cancelRequest struct{ Token int64 }

// root is a root file system without its place, which each machine has its own for.
type root struct {
	Digest string
	// Bound is where directories of the machine are a part of it, without their sources.
	Bound []engine.Bind `json:",omitempty"`
}

func rootOf(r *engine.Root) root {
	out := root{Digest: r.Digest}
	for _, b := range r.Binds {
		out.Bound = append(out.Bound, engine.Bind{Target: b.Target, Mask: b.Mask})
	}
	return out
}

type createRequest struct {
	token
	Spec  engine.Spec // without Root
	Root  root
	Label json.RawMessage `json:",omitempty"`
	// Values says that the network's bindings have values, which the node asks for.
	Values bool `json:",omitempty"`
}

// opened answers Create and Open.
type opened struct {
	Unenforced []string `json:",omitempty"`
}

// step is a message of the node in a call that has several: the last is Done.
type step[Res any] struct {
	// Values asks for the values of the network's bindings.
	Values bool `json:",omitempty"`
	// Commit asks whether a checkpoint is recorded.
	Commit *engine.Checkpoint `json:",omitempty"`
	// Fetch asks for a file of a checkpoint.
	Fetch *exportedFile `json:",omitempty"`
	// Usable says that instances can continue from the checkpoint of an import that goes on.
	Usable *engine.Checkpoint `json:",omitempty"`
	Done   *Res               `json:",omitempty"`
}

// value announces a secret frame, or the end of all.
type value struct {
	Placeholder string   `json:",omitempty"`
	End         bool     `json:",omitempty"`
	Failed      *failure `json:",omitempty"`
}

// committed answers a step with Commit.
type committed struct {
	Failed *failure `json:",omitempty"`
}

type byID struct{ ID string }

type settleRequest struct {
	// Keep are the instances that the daemon wants; the node ends all others.
	Keep []string
	// Epoch is larger than that of each daemon before; 0 is that nobody counts.
	Epoch int64
}

type status struct {
	ID      string
	Running bool            `json:",omitempty"`
	Reason  string          `json:",omitempty"`
	Log     string          `json:",omitempty"`
	Label   json.RawMessage `json:",omitempty"`
}

type admitRequest struct {
	N         int
	Of        engine.Source
	Resources sandbox.Resources
}

type limitsRequest struct {
	ID        string
	Resources sandbox.Resources
}

type networkRequest struct {
	token
	ID      string
	Network engine.Network
	Values  bool `json:",omitempty"`
}

type answerRequest struct {
	ID, Question string
	Allow        bool
}

type portRequest struct {
	ID       string
	Port     int
	Loopback bool
}

type checkpointRequest struct {
	token
	Instance, Checkpoint      string
	FilesOnly, Durable, Early bool            `json:",omitempty"`
	Label                     json.RawMessage `json:",omitempty"`
	Commit                    bool            `json:",omitempty"`
}

type checkpointed struct {
	Checkpoint engine.Checkpoint
	Stopped    time.Duration
}

// asideRequest names a place of the daemon's, which the node uses as a name only.
type asideRequest struct{ ID, Place string }

type warmSpec struct {
	Checkpoint string
	Root       root
	Resources  sandbox.Resources
	Max        int
}

type logRequest struct {
	SandboxID string
	Request   sandbox.NetworkLogRequest
}

type logPage struct {
	Events []sandbox.NetworkEvent `json:",omitempty"`
	Next   string                 `json:",omitempty"`
}

// event is told by a node without having been asked. One field is set.
type event struct {
	Failed *status `json:",omitempty"`
	Asked  *asked  `json:",omitempty"`
	// Warm says why no instance can be made from a golden checkpoint.
	Warm *warmFailure `json:",omitempty"`
	// Peer asks for a connection to another sandbox.
	Peer *peer `json:",omitempty"`
	// Alive is sent if there is nothing else, to show that the node lives.
	Alive bool `json:",omitempty"`
}

type asked struct {
	Instance string
	Open     []engine.Question `json:",omitempty"`
}

type warmFailure struct {
	Checkpoint string
	Failure    failure
}

// peer is the request of a sandbox for a connection to a port of another.
type peer struct {
	ID   int64
	From string
	Name string
	Port int
}

// peerAnswer begins the stream that answers a peer.
type peerAnswer struct {
	ID     int64
	Failed *failure `json:",omitempty"`
}

// label is what the node keeps with an instance or a checkpoint.
type label struct {
	// Root is the digest of the root that the daemon knows; the node's own may have another.
	Root string `json:"root"`
	// Here is the digest of the node's own.
	Here  string          `json:"here,omitempty"`
	Label json.RawMessage `json:"label,omitempty"`
}

func wrapLabel(digest, here string, l json.RawMessage) (json.RawMessage, error) {
	return json.Marshal(label{digest, here, l})
}

// unwrapLabel undoes wrapLabel. What is no such label is returned as it is.
func unwrapLabel(data json.RawMessage) label {
	var l label
	if len(data) == 0 || json.Unmarshal(data, &l) != nil {
		return label{Label: data}
	}
	return l
}
