package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/cove-sh/cove/sandbox"
)

// maxPolicyFile bounds a policy file, in bytes, far above the largest policy.
const maxPolicyFile = 1 << 20

// readPolicy reads a policy from a file, or standard input for "-": JSON as
// printPolicy prints it, or the same as YAML.
func readPolicy(stdin io.Reader, path string) (*sandbox.NetworkPolicy, error) {
	in := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer closeQuietly(f)
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxPolicyFile))
	if err != nil {
		return nil, fmt.Errorf("read the policy: %w", err)
	}
	policy, err := parsePolicy(data)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "the policy is not valid: %w; see an example with: cove egress SANDBOX --json", err)
	}
	return policy, nil
}

func parsePolicy(data []byte) (*sandbox.NetworkPolicy, error) {
	if !json.Valid(data) {
		var err error
		if data, err = policyJSON(data); err != nil {
			return nil, err
		}
	}
	// Without this check, an empty file would allow everything.
	if data = bytes.TrimSpace(data); !bytes.HasPrefix(data, []byte("{")) {
		return nil, errors.New("it has no fields")
	}
	var file struct {
		SchemaVersion int `json:"schema_version"`
		sandbox.NetworkPolicy
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&file); err != nil {
		return nil, namedField(err)
	}
	return &file.NetworkPolicy, nil
}

// namedField returns the error with the name of the field, as in the file, that has a
// value of the wrong type.
func namedField(err error) error {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return err
	}
	takes := map[reflect.Kind]string{
		reflect.Slice: "a list", reflect.Struct: "an object", reflect.String: "text", reflect.Bool: "true or false",
	}[wrong.Type.Kind()]
	if takes == "" {
		takes = "a whole number"
	}
	return fmt.Errorf("%s takes %s; found: %s", strings.TrimPrefix(wrong.Field, "NetworkPolicy."), takes, wrong.Value)
}

// policyJSON makes JSON of a policy in YAML.
func policyJSON(data []byte) ([]byte, error) {
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("it has more than one document")
	}
	portsAsText(&doc)
	var value any
	if err := doc.Decode(&value); err != nil {
		return nil, err
	}
	return json.Marshal(value)
}

// portsAsText makes the ports in a document text: without quotes, YAML has them as
// numbers.
func portsAsText(n *yaml.Node) {
	for i, part := range n.Content {
		portsAsText(part)
		if n.Kind != yaml.MappingNode || i%2 == 0 || n.Content[i-1].Value != "ports" {
			continue
		}
		for _, port := range part.Content {
			if port.Kind == yaml.ScalarNode {
				port.Tag = "!!str"
			}
		}
	}
}
