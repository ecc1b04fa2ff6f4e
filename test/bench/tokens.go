package main

import (
	"context"
	"os"
	"strconv"

	"github.com/cove-sh/cove/internal/testing/figures"
)

// tokens measures how much the first token of a model's answer is delayed if the gateway
// inspects the answer for a secret. The host pauses after that token, so that a gateway
// which waits for more would show.
func (b *bench) tokens(ctx context.Context) error {
	load, err := buildHelper(ctx, "netload")
	if err != nil {
		return err
	}
	defer os.Remove(load)
	n := strconv.Itoa(5 * b.n)
	return b.withSandbox(ctx, func(id string) error {
		for from, to := range map[string]string{load: insideLoad, b.net.CA: "/tmp/ca.pem"} {
			if err := b.upload(ctx, id, from, to); err != nil {
				return err
			}
		}
		ways := []struct{ kind, connection string }{{"tokens", "kept connection"}, {"newtokens", "new connection"}}
		without := map[string]figures.Series{}
		for _, w := range ways {
			if err := b.load(ctx, "first token, "+w.connection+", passed through", "", id, w.kind, n, "https://example.com/tokens", "/tmp/ca.pem"); err != nil {
				return err
			}
			without[w.kind] = b.rows[len(b.rows)-1]
		}
		if err := b.attachSecret(ctx, id); err != nil {
			return err
		}
		for _, w := range ways {
			name := "first token through the gateway with a secret, added latency, " + w.connection
			if err := b.load(ctx, name, "", id, w.kind, n, "https://example.com/tokens"); err != nil {
				return err
			}
			row := &b.rows[len(b.rows)-1]
			row.Target = "< 15 ms"
			for i := range row.Values {
				row.Values[i] -= without[w.kind].Percentile(50)
			}
		}
		return b.detachSecret(ctx, id)
	})
}
