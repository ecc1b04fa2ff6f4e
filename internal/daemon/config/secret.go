package config

import (
	"errors"

	"go.yaml.in/yaml/v3"

	"github.com/cove-sh/cove/sandbox"
)

// Secret is a setting that is not shown.
type Secret struct{ sandbox.SecretValue }

// MarshalYAML encodes "[redacted]".
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }

// UnmarshalYAML takes text.
func (s *Secret) UnmarshalYAML(n *yaml.Node) error {
	var text string
	if n.Decode(&text) != nil { // the error may have some of it
		return errors.New("a secret is not text; put it into quotes")
	}
	s.SecretValue = sandbox.NewSecretValue(text)
	return nil
}
