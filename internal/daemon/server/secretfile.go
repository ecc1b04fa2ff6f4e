package server

import (
	"fmt"
	"os"
	"strings"

	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/internal/daemon/service/webhooks"
	"github.com/cove-sh/cove/sandbox"
)

// maxSecretFile bounds a secret that the configuration names a file of, in bytes.
const maxSecretFile = 4096

// secretOf returns the secret in a file, without the end of its line; none if no file is
// named. Key is that of the configuration.
func secretOf(key, file string) (sandbox.SecretValue, error) {
	var none sandbox.SecretValue
	if file == "" {
		return none, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return none, sandbox.Wrap(sandbox.CodeInvalid, err, fmt.Sprintf("the file %s of %s cannot be read; check its path and permissions", file, key))
	}
	secret := strings.TrimRight(string(data), "\r\n")
	if secret == "" || len(secret) > maxSecretFile || strings.ContainsAny(secret, "\r\n\x00") {
		return none, sandbox.Errorf(sandbox.CodeInvalid, "the file %s of %s must be one line of 1 to %d bytes; put the secret into it", file, key, maxSecretFile)
	}
	return sandbox.NewSecretValue(secret), nil
}

// receivers returns who is told what network policies ask.
func receivers(configured []config.ApprovalWebhook) ([]webhooks.Receiver, error) {
	all := make([]webhooks.Receiver, len(configured))
	for i, c := range configured {
		secret, err := secretOf("webhooks.approvals", c.SecretFile)
		if err != nil {
			return nil, err
		}
		all[i] = webhooks.Receiver{Team: c.Team, Hook: sandbox.Webhook{URL: c.URL, Secret: secret}}
	}
	return all, nil
}
