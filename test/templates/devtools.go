package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image/png"
	"net"
	"net/http"
	"slices"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"

	"github.com/cove-sh/cove/sandbox"
)

const devtoolsPort = 9222

// devtools starts a second Chromium, without a window, and has it draw a page as
// programs such as Playwright do.
func (u *user) devtools() error {
	_, err := u.d.Client.Exec(u.ctx, u.id, sandbox.ExecRequest{
		Command:    []string{"chromium", "--headless=new", fmt.Sprintf("--remote-debugging-port=%d", devtoolsPort), "--user-data-dir=/tmp/headless", "file:///tmp/form.html"},
		Background: true, TimeoutMS: sandbox.MaxExecTimeout.Milliseconds(),
	}, nil)
	if err != nil {
		return err
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return u.d.Client.DialPort(ctx, u.id, devtoolsPort)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial}}
	defer client.CloseIdleConnections()
	type page struct {
		Type  string `json:"type"`
		Title string `json:"title"`
		URL   string `json:"webSocketDebuggerUrl"`
	}
	var pages []page
	if err := u.await(func() error {
		resp, err := client.Get(fmt.Sprintf("http://localhost:%d/json/list", devtoolsPort))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		pages = nil
		if err := json.NewDecoder(resp.Body).Decode(&pages); err != nil {
			return err
		}
		// Parts of the browser's own window are listed too.
		pages = slices.DeleteFunc(pages, func(p page) bool { return p.Type != "page" })
		if len(pages) != 1 || pages[0].Title != "Form" {
			return fmt.Errorf("its pages are %+v", pages)
		}
		return nil
	}); err != nil {
		return err
	}
	conn, _, err := websocket.Dial(u.ctx, pages[0].URL, &websocket.DialOptions{HTTPClient: client})
	if err != nil {
		return err
	}
	defer conn.CloseNow()
	conn.SetReadLimit(16 << 20)
	if err := wsjson.Write(u.ctx, conn, map[string]any{"id": 1, "method": "Page.captureScreenshot"}); err != nil {
		return err
	}
	for {
		var answer struct {
			ID     int
			Result struct{ Data []byte }
			Error  struct{ Message string }
		}
		if err := wsjson.Read(u.ctx, conn, &answer); err != nil {
			return err
		}
		if answer.ID != 1 {
			continue
		}
		if answer.Error.Message != "" {
			return fmt.Errorf("it says: %s", answer.Error.Message)
		}
		img, err := png.Decode(bytes.NewReader(answer.Result.Data))
		if err == nil && area(img, pageColor).Dx() < 400 {
			err = fmt.Errorf("its picture of %v does not show the page", img.Bounds())
		}
		return err
	}
}
