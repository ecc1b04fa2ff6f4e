package covetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// engineVariable names the engine of all daemons: "nodes" has each of them run its sandboxes
// on a node, a process of its own as on another machine, instead of by itself. What the node
// has is found where the daemon would have it.
const engineVariable = "COVE_TEST_ENGINE"

// OnNode reports whether daemons run their sandboxes on a node.
func OnNode() bool { return os.Getenv(engineVariable) == "nodes" }

// node is the node of a daemon.
type node struct {
	address string // at which the daemon listens for it
	dir     string // its state directory
	cmd     *exec.Cmd
	exited  chan struct{}
}

// prepareNode returns the node that the daemon will have.
func (d *Daemon) prepareNode() (*node, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	n := &node{address: l.Addr().String(), dir: filepath.Join(d.StateDir, "node")}
	if err := l.Close(); err != nil {
		return nil, err
	}
	if err := os.Mkdir(n.dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Symlink(filepath.Join("..", "engine"), filepath.Join(n.dir, "engine")); err != nil {
		return nil, err
	}
	if d.opts.UID == 0 {
		return n, nil
	}
	return n, os.Chown(n.dir, int(d.opts.UID), int(d.opts.UID))
}

// args are what the daemon needs to have the node.
func (n *node) args() []string {
	return []string{"--nodes", n.address, "--nodes-only"}
}

// joinNode starts the node and waits until it is ready.
func (d *Daemon) joinNode(ctx context.Context) error {
	token, err := d.Client.CreateJoinToken(ctx)
	if err != nil {
		return err
	}
	n := d.node
	n.cmd = d.Command(context.WithoutCancel(ctx), "node", "run", "--state-dir", n.dir, "--server", n.address, "--token", token.Token, "--name", "node")
	n.cmd.Env = append(append(n.cmd.Env, d.opts.Env...), "HOME="+n.dir)
	for flag, variable := range map[string]string{"--resolvers": "COVE_RESOLVERS", "--extra-ca": "COVE_EXTRA_CA"} {
		if i := slices.Index(d.opts.Args, flag); i >= 0 {
			n.cmd.Env = append(n.cmd.Env, variable+"="+d.opts.Args[i+1])
		}
	}
	n.cmd.Stdout, n.cmd.Stderr = d.output, d.output
	if err := n.cmd.Start(); err != nil {
		return err
	}
	n.exited = make(chan struct{})
	go func() {
		_ = n.cmd.Wait()
		close(n.exited)
	}()
	return d.awaitNode(ctx)
}

// awaitNode waits until the daemon drives its node, which takes a moment after each start.
func (d *Daemon) awaitNode(ctx context.Context) error {
	ready := func() bool {
		list, err := d.Client.ListNodes(ctx)
		return err == nil && len(list.Items) == 1 && list.Items[0].State == sandbox.NodeReady
	}
	if !Eventually(time.Minute, ready) {
		return fmt.Errorf("the node is not ready:\n%s", d.output)
	}
	return nil
}

// stop ends the node's process.
func (n *node) stop() error {
	_ = n.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-n.exited:
		return nil
	case <-time.After(30 * time.Second):
		_ = n.cmd.Process.Kill()
		<-n.exited
		return errors.New("the node did not end within 30 s of SIGTERM")
	}
}
