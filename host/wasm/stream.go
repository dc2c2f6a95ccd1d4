// SPDX-License-Identifier: Apache-2.0

package wasm

import (
	"bytes"
	"os"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/internal/invariant"
)

// Stream returns the command of a worker with one instance of a module, and the head that the caller
// MUST write to its standard input first. The rest of the input goes to the module, and the output of the
// module is that of the worker, until the module ends or the caller kills the process. The last line of
// standard error then says what was wrong with the module.
func (w *Workers) Stream(sum string, grants []string) (command []string, head []byte, err error) {
	module, err := w.modules.get(sum)
	if err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(w.cache(), 0o700); err != nil {
		return nil, nil, err
	}
	var b bytes.Buffer
	s := start{Cache: w.cache(), Grants: grants, Stream: true}
	invariant.Must(0, writeFrame(&b, frameStart, invariant.Must(json.Marshal(s))))
	invariant.Must(0, writeFrame(&b, frameModule, module))
	return w.options.Command, b.Bytes(), nil
}
