package controllers

import (
	"context"
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	agents "github.com/cove-sh/cove/deploy/controller/api/agents/v1beta1"
	"github.com/cove-sh/cove/sandbox"
)

// few is Cove with some sandboxes, of which it notes those that end.
type few struct {
	sandbox.Service
	all    []sandbox.Sandbox
	killed []string
}

func (f *few) Get(_ context.Context, id string) (*sandbox.Sandbox, error) {
	for i := range f.all {
		if f.all[i].ID == id {
			return &f.all[i], nil
		}
	}
	return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no sandbox %s", id)
}

func (f *few) List(_ context.Context, req sandbox.ListRequest) (*sandbox.List[sandbox.Sandbox], error) {
	list := &sandbox.List[sandbox.Sandbox]{}
	for _, s := range f.all {
		if s.Namespace == req.Namespace && s.Metadata[uidKey] == req.Metadata[uidKey] {
			list.Items = append(list.Items, s)
		}
	}
	return list, nil
}

func (f *few) Kill(_ context.Context, id string) (*sandbox.Sandbox, error) {
	f.killed = append(f.killed, id)
	return f.Get(context.Background(), id)
}

// Whoever can write an object must not reach another one's sandbox by it.
func TestAnnotationOfAnother(t *testing.T) {
	made := func(id, namespace, uid, forked string) sandbox.Sandbox {
		return sandbox.Sandbox{ID: id, Namespace: namespace, Name: "k8s-" + uid, State: sandbox.StateRunning, ForkedFrom: forked, Metadata: map[string]string{uidKey: uid}}
	}
	cove := &few{all: []sandbox.Sandbox{
		made("own", "n", "u", ""), made("other-object", "n", "v", ""), made("other-namespace", "m", "u", ""), made("fork", "n", "u", "own"),
	}}
	for id, mine := range map[string]bool{"own": true, "other-object": false, "other-namespace": false, "fork": false} {
		sb := &agents.Sandbox{}
		sb.Namespace, sb.UID, sb.Annotations = "n", types.UID("u"), map[string]string{SandboxAnnotation: id}
		if found, err := find(t.Context(), cove, sb); mine != (found != nil) || mine == errors.Is(err, errForeign) {
			t.Errorf("%s: found %v, %v", id, found, err)
		}
		cove.killed = nil
		if err := remove(t.Context(), cove, sb); err != nil || len(cove.killed) != 1 || cove.killed[0] != "own" {
			t.Errorf("%s: with the object ended %v, %v", id, cove.killed, err)
		}
	}
}
