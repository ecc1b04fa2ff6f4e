package agentbin

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"testing/fstest"
)

func TestMissing(t *testing.T) {
	if _, err := from(fstest.MapFS{"bin/.gitignore": {}}); !errors.Is(err, ErrMissing) {
		t.Errorf("without the agent: got %v, want %v", err, ErrMissing)
	}
	got, err := from(fstest.MapFS{"bin/agent": {Data: []byte("x")}})
	if err != nil || string(got) != "x" {
		t.Errorf("with an agent: got %q, %v", got, err)
	}
}

func TestEmbedded(t *testing.T) {
	data, err := Binary()
	sum, derr := Digest()
	if errors.Is(err, ErrMissing) {
		if !errors.Is(derr, ErrMissing) {
			t.Errorf("Digest: got %v, want %v", derr, ErrMissing)
		}
		return // a build without it is allowed
	}
	if err != nil || derr != nil {
		t.Fatal(err, derr)
	}
	if !bytes.HasPrefix(data, []byte("\x7fELF")) || len(sum) != 64 {
		t.Errorf("the agent is not a program, or its digest %q is wrong", sum)
	}
}

func TestSelf(t *testing.T) {
	data, digest, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(own)
	if err != nil || !bytes.Equal(data, want) || len(digest) != 64 {
		t.Errorf("%d bytes with digest %q, the program has %d, %v", len(data), digest, len(want), err)
	}
}
