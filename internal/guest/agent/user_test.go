package agent

import (
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
)

const testPasswd = `# accounts
root:x:0:0:root:/root:/bin/bash
user:x:1000:1000::/home/user:
bad:x:x:1:::
short:x:1
1000:x:5:5::relative:/bin/zsh
twin:x:1000:7::/twin:/bin/twin`

const testGroup = `root:x:0:
wheel:x:10:root,user
docker:x:20:user,userx
other:x:30:userx
user:x:1000:user
`

func TestFindAccount(t *testing.T) {
	tests := []struct {
		spec string
		want account
		err  string
	}{
		{spec: "root", want: account{name: "root", home: "/root", shell: "/bin/bash", groups: []uint32{10}}},
		{spec: "0", want: account{name: "root", home: "/root", shell: "/bin/bash", groups: []uint32{10}}},
		{spec: "user", want: account{name: "user", uid: 1000, gid: 1000, home: "/home/user", shell: "/bin/sh", groups: []uint32{10, 20}}},
		{spec: "user:root", want: account{name: "user", uid: 1000, gid: 0, home: "/home/user", shell: "/bin/sh"}},
		{spec: "user:77", want: account{name: "user", uid: 1000, gid: 77, home: "/home/user", shell: "/bin/sh"}},
		{spec: "1000", want: account{name: "1000", uid: 5, gid: 5, home: "/", shell: "/bin/zsh"}}, // a name first
		{spec: "5000", want: account{name: "5000", uid: 5000, gid: 5000, home: "/", shell: "/bin/sh"}},
		{spec: "", want: account{name: "42", uid: 42, gid: 43, home: "/", shell: "/bin/sh"}},
		{spec: "nobody", err: "no user"},
		{spec: "user:nobody", err: "no group"},
		{spec: "user:", err: "not valid"},
		{spec: ":user", err: "not valid"},
		{spec: "a\x00b", err: "not valid"},
		{spec: "bad", err: "no user"},
		{spec: "4294967295", err: "no user"}, // means "unchanged" to the kernel
		{spec: "-1", err: "no user"},
	}
	for _, tt := range tests {
		got, err := findAccount([]byte(testPasswd), []byte(testGroup), tt.spec, 42, 43)
		if tt.err != "" {
			wantCode(t, err, connect.CodeInvalidArgument, tt.err)
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", tt.spec, err)
			continue
		}
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(account{})); diff != "" {
			t.Errorf("%q: (-want +got)\n%s", tt.spec, diff)
		}
	}
}

func FuzzFindAccount(f *testing.F) {
	f.Add([]byte(testPasswd), []byte(testGroup), "user:wheel")
	f.Add([]byte(testPasswd), []byte(testGroup), "1000")
	f.Add([]byte(":::::::"), []byte(":::"), "")
	f.Fuzz(func(t *testing.T, passwd, group []byte, spec string) {
		acc, err := findAccount(passwd, group, spec, 1, 1)
		if err != nil {
			return
		}
		if acc.uid == 1<<32-1 || acc.gid == 1<<32-1 {
			t.Errorf("%q: an id that means unchanged", spec)
		}
		if !strings.HasPrefix(acc.home, "/") || acc.shell == "" || strings.ContainsAny(acc.home+acc.shell+acc.name, "\x00\n:") {
			t.Errorf("%q: bad account %+v", spec, acc)
		}
		for i, g := range acc.groups {
			if i > 0 && g <= acc.groups[i-1] {
				t.Errorf("%q: groups %v", spec, acc.groups)
			}
		}
	})
}
