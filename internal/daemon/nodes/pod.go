package nodes

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"sync"

	"github.com/cove-sh/cove/internal/daemon/pods"
	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/sandbox"
)

// Pods are the Pods of a Kubernetes cluster; see [pods.Cluster].
type Pods interface {
	Prove(ctx context.Context, token string) (pods.Pod, error)
	Exists(ctx context.Context, pod pods.Pod) (bool, error)
	Gone(ctx context.Context, pod pods.Pod) (bool, error)
	Delete(ctx context.Context, pod pods.Pod) error
}

// podNodes knows which nodes are Pods: a file for each, by the name of the node.
type podNodes struct {
	files durable.Files
	mu    sync.Mutex // held while a Pod joins
	// proofs is a semaphore: one place for each token that is being checked.
	proofs chan struct{}
}

// podNode says which Pod a node is. The node has joined if the fleet knows the id.
type podNode struct {
	UID string `json:"uid"`
	ID  string `json:"id"`
	// Dedicated is that of the node, and Used says that the Pod was used and is to be replaced.
	Dedicated bool `json:"dedicated,omitempty"`
	Used      bool `json:"used,omitempty"`
}

// podsDir has the files of podNodes.
const podsDir = "pods"

func podFile(name string) string { return path.Join(podsDir, name) }

func (p *podNodes) read(name string) (node podNode, err error) {
	data, err := p.files.Read(podFile(name))
	if err == nil {
		err = json.Unmarshal(data, &node)
	}
	return node, err
}

func (p *podNodes) write(name string, node podNode) error {
	data, err := json.Marshal(node)
	if err == nil {
		err = p.files.Write(podFile(name), data)
	}
	return err
}

// used returns the Pods that were used and are to be replaced, by the ids of the nodes that they
// were.
func (p *podNodes) used() (map[string]pods.Pod, error) {
	all, err := p.files.ReadAll(podsDir)
	if err != nil {
		return nil, err
	}
	used := map[string]pods.Pod{}
	for file, data := range all {
		var node podNode
		if err := json.Unmarshal(data, &node); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if node.Used {
			used[node.ID] = pods.Pod{Name: path.Base(file), UID: node.UID}
		}
	}
	return used, nil
}

// forget forgets a Pod, unless another one has its name by now.
func (p *podNodes) forget(pod pods.Pod) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, err := p.read(pod.Name)
	if err != nil || known.UID != pod.UID {
		return err
	}
	return p.files.Remove(podFile(pod.Name))
}

// Authority returns the certificate of the nodes' authority, in PEM.
func (n *Nodes) Authority() string { return text(n.authority.cert.Raw) }

// joinPod lets a Pod join as the node of its own name.
func (n *Nodes) joinPod(w http.ResponseWriter, r *http.Request, req JoinRequest) {
	der, err := n.admitPod(r, req)
	if err != nil {
		n.cfg.Log.Warn("a Pod could not join", "node", req.Name, "address", r.RemoteAddr, "error", err)
		fail(w, err)
		return
	}
	n.sendCertificate(w, der)
}

func (n *Nodes) admitPod(r *http.Request, req JoinRequest) ([]byte, error) {
	if n.cfg.Pods == nil {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "this server does not let Pods join; start it with --nodes-service-account NAMESPACE/NAME")
	}
	pod, err := n.prove(r.Context(), req.PodToken)
	if err != nil {
		return nil, err
	}
	if req.Name != pod.Name {
		return nil, sandbox.Errorf(sandbox.CodeUnauthenticated, "the token is that of the Pod %.80q, which can only join as the node of this name, not as %.80q", pod.Name, req.Name)
	}
	n.pods.mu.Lock()
	defer n.pods.mu.Unlock()
	if err := n.refuseUsed(pod, req.Dedicated); err != nil {
		return nil, err
	}
	if err := n.makeRoom(pod); err != nil {
		return nil, err
	}
	id := rand.Text()
	der, err := n.authority.node(req.Request, pod.Name, id)
	if err != nil {
		return nil, sandbox.Wrap(sandbox.CodeInvalid, err, "the certificate request is not valid")
	}
	if err := n.pods.write(pod.Name, podNode{UID: pod.UID, ID: id, Dedicated: req.Dedicated}); err != nil {
		return nil, err
	}
	if err := n.cfg.Fleet.Join(pod.Name, id, req.Dedicated); err != nil {
		return nil, err
	}
	n.cfg.Log.Info("node joined as a Pod", "node", pod.Name, "uid", pod.UID, "address", r.RemoteAddr)
	return der, nil
}

// maxProofs is how many tokens of Pods are checked at once: anybody can send some, and each
// costs the cluster a call.
const maxProofs = 16

// prove returns the Pod that a token was issued to.
func (n *Nodes) prove(ctx context.Context, token string) (pods.Pod, error) {
	select {
	case n.pods.proofs <- struct{}{}:
		defer func() { <-n.pods.proofs }()
	default:
		return pods.Pod{}, sandbox.Errorf(sandbox.CodeUnavailable, "too many Pods join at the same time; retry in a few seconds")
	}
	return n.cfg.Pods.Prove(ctx, token)
}

// refuseUsed refuses a Pod that has joined before and would now get what it must not: one that
// was dedicated to a family would be free again, and one that others have used dedicated.
func (n *Nodes) refuseUsed(pod pods.Pod, dedicated bool) error {
	before, err := n.pods.read(pod.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && before.UID != pod.UID:
		return nil
	case err != nil:
		return err
	case before.Used || n.cfg.Fleet.IsMember(pod.Name, before.ID) && n.cfg.Fleet.Claimed(pod.Name):
		return sandbox.Errorf(sandbox.CodeForbidden, "the Pod has already been used by a dedicated sandbox; delete the Pod, so that a new Pod replaces it")
	case before.Dedicated != dedicated:
		return sandbox.Errorf(sandbox.CodeForbidden, "the Pod joined before with a different value of --dedicated; delete the Pod, so that a new Pod replaces it")
	}
	return nil
}

// markUsed notes that a Pod was used and is to be replaced.
func (n *Nodes) markUsed(name, id string) error {
	n.pods.mu.Lock()
	defer n.pods.mu.Unlock()
	known, err := n.pods.read(name)
	if err != nil || known.ID != id || known.Used || !known.Dedicated {
		return err
	}
	known.Used = true
	return n.pods.write(name, known)
}

// makeRoom removes the node that an earlier Pod of this name was, or that this Pod was
// before it lost its state. There is one Pod of a name at a time, so the other one is gone.
// Its sandboxes have failed when its lease has run out; until then this is a conflict.
func (n *Nodes) makeRoom(pod pods.Pod) error {
	taken := n.cfg.Fleet.Available(pod.Name)
	if sandbox.CodeOf(taken) != sandbox.CodeConflict {
		return taken
	}
	before, err := n.pods.read(pod.Name)
	if err != nil || !n.cfg.Fleet.IsMember(pod.Name, before.ID) {
		return taken // it joined with a token of "cove node token"
	}
	if err := n.cfg.Fleet.Remove(pod.Name); err != nil {
		return err
	}
	n.cfg.Log.Info("a node was removed, because another Pod has its name", "node", pod.Name, "uid", before.UID, "by", pod.UID)
	return nil
}
