// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"slices"
	"strings"
	"testing"
)

// Texts of tools that agents pass on, with the word that a user should not read, and sentences that stay.
func TestTextsOfMachinery(t *testing.T) {
	for text, want := range map[string]string{
		"dial tcp 10.0.0.7:5432: connect: connection refused": "10.0.0.7:5432",
		"connect ECONNREFUSED":                                "ECONNREFUSED",
		"POST https://crm.acme.com/v2/deals: 503":             "https://crm.acme.com/v2/deals",
		"crm.internal does not answer":                        "crm.internal",
		"no route to [fe80::1]:8080":                          "fe80::1",
		"lookup ledger.svc.cluster.local: no such host":       "ledger.svc.cluster.local",
		"redis:6379 is away":                                  "redis:6379",
		"localhost refused it":                                "localhost",
		"db-1.acme.com:443 refused it":                        "db-1.acme.com:443",
		"open /var/lib/ledger/rates.csv: permission denied":   "/var/lib/ledger/rates.csv",
		`open C:\rates\2025.csv`:                              `C:\rates\2025.csv`,
		"the ledger says LEDGER_LOCKED":                       "LEDGER_LOCKED",
		"ValueError: rate":                                    "ValueError",
		"java.lang.NullPointerException at Rates":             "java.lang.NullPointerException",
		"request 0190f3a2-7c11-7e3a-9d52-1f0c5b6a7d88 failed": "0190f3a2-7c11-7e3a-9d52-1f0c5b6a7d88",
		"invalid memory address 0xdeadbeef":                   "0xdeadbeef",
		"Traceback (most recent call last)":                   "Traceback",
		"postgres@10.0.0.5 refused it":                        "postgres@10.0.0.5",
		"app:hunter2@10.0.0.5:5432/orders":                    "app:hunter2@10.0.0.5:5432/orders",
		"db-1:5432/orders is away":                            "db-1:5432/orders",
		"host:10.0.0.5":                                       "host:10.0.0.5",
		"no route to 10.0.0.0/24":                             "10.0.0.0/24",
		"error→10.0.0.5":                                      "10.0.0.5",
		"at\u00a010.0.0.5\u200b":                              "10.0.0.5",
		"dial [::1]:80":                                       "::1",
		"https:/10.0.0.5/x":                                   "https:/10.0.0.5/x",
		"open /secret.key":                                    "/secret.key",
		"read ~/.ssh/id_rsa":                                  "~/.ssh/id_rsa",
		"conf/app/prod.yaml is missing":                       "conf/app/prod.yaml",
		"C:/app/x.txt":                                        "C:/app/x.txt",
		"SQLSTATE[08006]":                                     "SQLSTATE",
		"trace 4bf92f3577b34da6a3ce929d0e0e4736":              "4bf92f3577b34da6a3ce929d0e0e4736",
		"key sk-live-ABCDEF is wrong":                         "sk-live-ABCDEF",
		"model_rejected: model own answers 400":               "model_rejected",
		"On 2026/11/30 or 30/11/26 (w/o VAT), 10 €/m² per year/quarter/month.": "",
		"Ask anna@acme.com about the EU/EFTA/UK rates: they cost 5 per 1,000.": "",
		"there are no figures": "",
		"The rate for 2025 is missing: it was 1.5 in Q4:2024 and/or 12:30.": "",
		"Node.js and acme.com are known; an Error is not.":                  "",
		"ANL_NPV needs a rate":                     "", // the lint has words for it
		"The budget is 5 km/h, I/O and 3/4 of it.": "",
		"Version 1.2.3 of the plan (FY:2025) for the EU, EMEA and the USA is approved!": "",
		"": "",
	} {
		if got := internalIn(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// The policy decides what becomes of such a text. What agents say in plain words stays.
func TestResponsesForUsers(t *testing.T) {
	of := func() Response {
		return Response{Status: Partial, ErrorMessage: "dial tcp 10.0.0.7:5432: refused", Warnings: []string{"only 2024", "crm.internal is away", "ERR_TLS"},
			Metadata: Metadata{Incomplete: []string{"segments", "/srv/rates/x"}}}
	}
	for policy, want := range map[UserText]string{
		RedactCodes: "an error occurred|only 2024|a part of it could not be done|segments|a part",
		FlagCodes:   "dial tcp 10.0.0.7:5432: refused|only 2024|crm.internal is away|ERR_TLS|segments|/srv/rates/x",
		KeepCodes:   "dial tcp 10.0.0.7:5432: refused|only 2024|crm.internal is away|ERR_TLS|segments|/srv/rates/x",
		0:           "dial tcp 10.0.0.7:5432: refused|only 2024|crm.internal is away|ERR_TLS|segments|/srv/rates/x",
	} {
		r, own := of(), of()
		before := own.Warnings
		r.Warnings = before
		found := r.ForUser(policy)
		got := strings.Join(slices.Concat([]string{r.ErrorMessage}, r.Warnings, r.Metadata.Incomplete), "|")
		if got != want || (len(found) == 4) != (policy == RedactCodes || policy == FlagCodes) {
			t.Errorf("%s: got %s, found %v", policy, got, found)
		}
		if before[1] != "crm.internal is away" {
			t.Errorf("%s: the list of the caller has changed", policy)
		}
	}
}
