// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
)

// Each failure of a backup has its own status and code.
func TestBackupErrors(t *testing.T) {
	var result error
	key, text := newTestKey(t, 1, 0, ingress.ScopeAdmin)
	keys := new(Keys)
	keys.Set([]ingress.Key{key})
	b := startBareGateway(t, Config{Keys: keys, Backup: func(name string) (string, error) { return "/backups/" + name, result }}, nil)
	for _, c := range []struct {
		err    error
		status int
		code   string
	}{
		{nil, 201, ""},
		{&os.PathError{Op: "mkdir", Path: "/x", Err: syscall.EEXIST}, 409, "backup_exists"},
		{fmt.Errorf("backup: %w", &os.PathError{Op: "write", Path: "/x", Err: syscall.ENOSPC}), 507, "disk_full"},
		{syscall.EDQUOT, 507, "disk_full"},
		{&os.PathError{Op: "mkdir", Path: "/x", Err: syscall.EACCES}, 403, "forbidden_folder"},
		{syscall.EROFS, 403, "forbidden_folder"},
		{fmt.Errorf("inside: %w", fs.ErrPermission), 403, "forbidden_folder"},
		{fmt.Errorf("checkpoint /x: %w", syscall.EIO), 500, "internal"},
		{actor.RefuseBusy(actor.ScopeNode, 1, "another backup is being made"), 503, "agent_busy"},
	} {
		result = c.err
		status, body, _, _ := b.sendRaw(t, b.named("POST /v1/backups HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+text+"\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{\"name\":\"a\"}"))
		if status != c.status || c.code != "" && !strings.Contains(body, `"code":"`+c.code+`"`) || strings.Contains(body, "/x") {
			t.Errorf("%v: %d %s, want %d %s", c.err, status, body, c.status, c.code)
		}
	}
}
