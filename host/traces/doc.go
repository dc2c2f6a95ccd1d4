// SPDX-License-Identifier: Apache-2.0

// Package traces sends the spans of runs to a collector of OpenTelemetry, as OTLP over HTTP in JSON.
//
//	log ─▶ Source ─▶ the events of a run that ended or was interrupted ─▶ spans (at most 2,048 wait) ─POST▶ collector
//	                    └─▶ file: the batch up to which all is sent, and the spans of clients in which open runs began
//
// Spans are derived from the events of runs. Guarantees:
//
//  1. The runs of a tree are one trace: that of the client's traceparent if there is one. It is the same after a
//     restart, because each identifier follows from what its span is about.
//  2. A run that waits for a decision, a signal or its operator is ended: its next span, of the same name, is linked
//     to it. No span is open while nothing happens.
//  3. The spans of an entry that was durable are sent at least once, also after kill -9.
//  4. Nothing waits for the collector. While it takes no spans, those that ended StaleAfter ago are dropped and
//     counted, and so are those that it rejects.
//  5. No span has a prompt, an answer, or arguments or results of tools unless the configuration says so. No span
//     has a secret of the configuration.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
//
// # Files
//
//	config.go   Config, the settings
//	names.go    the names of the semantic conventions
//	otlp.go     the body of a request to a collector
//	segment.go  segment, the spans of a run between two interruptions
//	traces.go   Traces, which sends them
package traces
