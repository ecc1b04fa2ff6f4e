package node

import (
	"context"
	"crypto/sha256"
	"encoding/pem"
	"fmt"
	"os"
	"strings"

	"github.com/cove-sh/cove/internal/daemon/nodes"
	"github.com/cove-sh/cove/sandbox"
)

// PodFiles are the files with which a Pod of a Kubernetes cluster joins.
type PodFiles struct {
	// Token has a token of the Pod's ServiceAccount. The kubelet replaces it.
	Token string
	// Authority has the certificate of the server's authority, in PEM. It says which
	// server is to see the token.
	Authority string
}

// JoinAsPod makes the Pod a node of the server. While the server cannot be reached or cannot
// ask the cluster, the error is unavailable; while another Pod that had the name is believed
// to run sandboxes, it is a conflict.
func (i *Identity) JoinAsPod(ctx context.Context, files PodFiles, name string, dedicated bool) error {
	ca, err := os.ReadFile(files.Authority)
	if err != nil {
		return fmt.Errorf("read the server's authority: %w", err)
	}
	block, _ := pem.Decode(ca)
	if block == nil {
		return sandbox.Errorf(sandbox.CodeInvalid, "%s has no certificate; mount what the server has written into the ConfigMap", files.Authority)
	}
	token, err := os.ReadFile(files.Token)
	if err != nil {
		return fmt.Errorf("read the Pod's token: %w", err)
	}
	want := sha256.Sum256(block.Bytes)
	return i.join(ctx, nodes.JoinRequest{PodToken: strings.TrimSpace(string(token)), Name: name, Dedicated: dedicated}, want[:])
}
