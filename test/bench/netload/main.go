// Command netload runs inside or outside a sandbox, and prints how long network operations
// take, in nanoseconds, one per line.
//
//	netload requests N URL [CA-FILE]   requests over one connection
//	netload connections N URL [CA]     requests over a connection each
//	netload tokens N URL [CA]          the first event of streams, over one connection
//	netload newtokens N URL [CA]       the same, over a connection each
//	netload connect N HOST:PORT        connections, one after another
//	netload flood N AT-ONCE HOST:PORT  N connections, AT-ONCE at a time: one time for all
//	netload serve ADDRESS              answers every request, forever
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "netload:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 2 && args[0] == "serve" {
		return http.ListenAndServe(args[1], http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello\n") }))
	}
	if len(args) < 3 {
		return fmt.Errorf("unexpected arguments %q", args)
	}
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	switch args[0] {
	case "requests", "connections":
		client, err := newClient(args[0] == "connections", args[3:])
		if err != nil {
			return err
		}
		return each(n, func() error { return get(client, args[2]) })
	case "tokens", "newtokens":
		client, err := newClient(args[0] == "newtokens", args[3:])
		if err != nil {
			return err
		}
		return eachTold(n, func() (time.Duration, error) { return firstEvent(client, args[2]) })
	case "connect":
		return each(n, func() error { return touch(args[2]) })
	case "flood":
		atOnce, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		return flood(n, atOnce, args[3])
	}
	return fmt.Errorf("unexpected arguments %q", args)
}

// each measures n runs, after one that is not counted.
func each(n int, do func() error) error {
	return eachTold(n, func() (time.Duration, error) {
		began := time.Now()
		err := do()
		return time.Since(began), err
	})
}

// eachTold is like each, for functions that return their own duration.
func eachTold(n int, do func() (time.Duration, error)) error {
	for i := range n + 1 {
		took, err := do()
		if err != nil {
			return err
		}
		if i > 0 {
			fmt.Println(took.Nanoseconds())
		}
	}
	return nil
}

func newClient(once bool, ca []string) (*http.Client, error) {
	tr := &http.Transport{DisableKeepAlives: once, TLSClientConfig: &tls.Config{}, ForceAttemptHTTP2: true}
	if len(ca) > 0 {
		text, err := os.ReadFile(ca[0])
		if err != nil {
			return nil, err
		}
		tr.TLSClientConfig.RootCAs = x509.NewCertPool()
		tr.TLSClientConfig.RootCAs.AppendCertsFromPEM(text)
	}
	return &http.Client{Transport: tr}, nil
}

// ask sends a request, with the secret if there is one. The caller closes the
// body of the answer, whose status is 200.
func ask(client *http.Client, url string) (*http.Response, error) {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if token := os.Getenv("BENCH_TOKEN"); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		res.Body.Close()
		return nil, fmt.Errorf("%s: %s", url, res.Status)
	}
	return res, nil
}

func get(client *http.Client, url string) error {
	res, err := ask(client, url)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return err
}

// firstEvent measures a request to the end of the first event of its response, and reads
// the rest.
func firstEvent(client *http.Client, url string) (time.Duration, error) {
	began := time.Now()
	res, err := ask(client, url)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	r := bufio.NewReader(res.Body)
	for line := ""; line != "\n"; {
		if line, err = r.ReadString('\n'); err != nil {
			return 0, err
		}
	}
	took := time.Since(began)
	_, err = io.Copy(io.Discard, r)
	return took, err
}

// touch opens a connection to a server that echoes, and uses it once.
func touch(addr string) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 1))
	return err
}

func flood(n, atOnce int, addr string) error {
	var wg sync.WaitGroup
	errs := make(chan error, atOnce)
	began := time.Now()
	for i := range atOnce {
		wg.Go(func() {
			for range (n + atOnce - 1 - i) / atOnce {
				if err := touch(addr); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	fmt.Println(time.Since(began).Nanoseconds())
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}
