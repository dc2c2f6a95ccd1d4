// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"fmt"
	"strings"
)

// checkBatch returns the errors of a tool with batch whose request could not hold the arguments of several calls.
func (d *Declared) checkBatch() (problems FieldErrors) {
	if !d.Batch {
		return nil
	}
	report := func(field, format string, args ...any) {
		problems = append(problems, FieldError{field, fmt.Sprintf(format, args...)})
	}
	if strings.Contains(identityPlaceholder.ReplaceAllString(d.URL, ""), "{") {
		report("url", "has the place of an argument, but with batch = true one request has the arguments of several calls: remove it, they are in the body")
	}
	if d.Method == "GET" || d.Method == "DELETE" {
		report("method", "want POST, PUT or PATCH with batch = true, got %s: the calls are a list in the body", d.Method)
	}
	if len(d.Body) > 0 {
		report("body", "not allowed with batch = true, whose body is the list of calls; remove one of them")
	}
	if d.CacheMS != 0 {
		report("cache_ms", "not allowed with batch = true; remove one of them")
	}
	return problems
}
