// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
)

// jsonForm is the documented form of a JSON object that a client sends. It generates
// valid objects and objects with one mistake. The mistake determines whether the object
// MUST be refused and which field the refusal names, without any code that decodes.
type jsonForm struct {
	name    string
	fields  []formField
	schema  bool // the form is that of a JSON schema: null is not absence, and a refusal gives the location within the field
	unnamed bool // a refusal names no field
	read    func(body []byte) (formValues, *actor.Refusal)
}

// formField is one field of a form. A name with a dot is that of a field in a table.
type formField struct {
	name, alias string
	required    bool
	missing     string // field that the refusal of an object without this one names; empty: this one
	always      bool   // not required, but the mistakes of other fields depend on it
	absent      string // meaning of an object without the field
	good        []formValue
	bad         []string // JSON values that MUST be refused
}

// formValue is a JSON value and its meaning.
type formValue struct{ json, means string }

// formValues are the meanings of an object, by field. A field without an entry has its
// meaning of absence.
type formValues map[string]string

// formObject is a generated object.
type formObject struct {
	mistake  string // empty: the object is valid
	text     string
	want     formValues
	field    string // field that the refusal names
	anyField bool   // the refusal may name another field
}

// formMember is a member of a generated object.
type formMember struct{ name, json string }

// picker draws from a single number, so that an object is one recorded choice. The
// number 0 always draws 0.
type picker struct{ seed, drawn uint64 }

func (p *picker) Int(n int) int {
	p.drawn++
	if p.seed == 0 {
		return 0
	}
	return int(mix(p.seed, p.drawn) % uint64(n))
}

// field returns the field of a name, which exists.
func (f *jsonForm) field(name string) *formField {
	return &f.fields[slices.IndexFunc(f.fields, func(o formField) bool { return o.name == name })]
}

// draw generates an object. Half of the objects have a mistake.
func (f *jsonForm) draw(p *picker) formObject {
	o := formObject{want: formValues{}}
	var members []formMember
	for i := range f.fields {
		field := &f.fields[i]
		if !field.required && !field.always && p.Int(2) == 0 {
			continue
		}
		v := field.good[p.Int(len(field.good))]
		o.want[field.name] = v.means
		name := field.name
		if field.alias != "" && p.Int(3) == 2 {
			name = field.alias
		}
		members = append(members, formMember{name, v.json})
	}
	at := p.Int(len(members) + 1)
	members = slices.Concat(members[at:], members[:at])
	if p.Int(2) == 1 {
		members = f.mistake(&o, members, p)
	}
	if o.text == "" {
		o.text = renderObject(members, p)
	}
	f.breakSyntax(&o, p)
	return o
}

// mistake makes one of the members wrong.
func (f *jsonForm) mistake(o *formObject, members []formMember, p *picker) []formMember {
	wrong := func(mistake, field string) { o.mistake, o.field = mistake, field }
	if len(f.fields) == 0 {
		wrong("unknown field", "other")
		return []formMember{{"other", "1"}}
	}
	field := &f.fields[p.Int(len(f.fields))]
	at := slices.IndexFunc(members, func(m formMember) bool { return m.name == field.name || field.alias != "" && m.name == field.alias })
	set := func(name, json string) {
		if at < 0 {
			at, members = len(members), append(members, formMember{})
		}
		members[at] = formMember{name, json}
	}
	table, last, nested := strings.Cut(field.name, ".")
	switch choice := p.Int(9); {
	case choice == 0 && field.required:
		members = slices.Delete(members, at, at+1)
		wrong("missing field", textOr(field.missing, field.name))
	case choice == 1:
		set(field.name, "null")
		if delete(o.want, field.name); field.required || f.schema {
			wrong("null", textOr(field.missing, field.name))
		}
	case choice == 2 && at >= 0:
		members = append(members, members[at])
		wrong("duplicate field", members[at].name)
	case choice == 3:
		name := field.name + [...]string{"s", "_", " ", "\u00e9"}[p.Int(4)]
		members = append(members, formMember{name, field.good[0].json})
		wrong("unknown field", name)
	case choice == 4 && !field.required:
		delete(o.want, field.name)
		name := strings.ToUpper(field.name)
		if nested {
			name = table + "." + strings.ToUpper(last)
		}
		set(name, field.good[0].json)
		wrong("field in upper case", name)
	case choice == 5:
		set(field.name, strings.Repeat("[", ingress.DepthMax)+strings.Repeat("]", ingress.DepthMax))
		wrong("deep nesting", field.name)
		o.anyField = f.schema
	case choice == 6 && field.alias != "" && at >= 0:
		other := field.alias
		if members[at].name == other {
			other = field.name
		}
		same := p.Int(2) == 0
		v := members[at].json
		if !same {
			v = `"another"`
			wrong("alias with another value", field.alias)
		}
		members = append(members, formMember{other, v})
	case choice == 7:
		set(field.name, "\"a"+[...]string{"\xff", "\x00", "\n", `\ud800`, `\x`, "\xed\xa0\x80"}[p.Int(6)]+`"`)
		wrong("invalid text", field.name)
		o.anyField = nested // of some members the decoder names only the table
	case len(field.bad) > 0:
		name := field.name
		if field.alias != "" && p.Int(3) == 2 {
			name = field.alias
		}
		set(name, field.bad[p.Int(len(field.bad))])
		wrong("invalid value", name)
	}
	return members
}

// breakSyntax damages the text of some objects that have no other mistake.
func (f *jsonForm) breakSyntax(o *formObject, p *picker) {
	if o.mistake != "" || p.Int(6) != 5 {
		return
	}
	end := strings.LastIndexByte(o.text, '}')
	switch p.Int(4) {
	case 0:
		o.mistake, o.anyField, o.text = "truncated", true, o.text[:p.Int(end)+min(end, 1)]
	case 1:
		o.mistake, o.text = "trailing data", o.text+[...]string{"x", "{}", "]", "7", `""`, ",", "null", "\x00"}[p.Int(8)]
	case 2:
		o.mistake, o.text = "no object", [...]string{" ", "[]", "false", "7", `"a"`, "true", "[" + o.text + "]", "\r\n"}[p.Int(8)]
	case 3:
		o.mistake, o.anyField, o.text = "misplaced punctuation", true, o.text[:end]+[...]string{",}", ",,}", ":}", "]", `"}`, " 01}", "/**/}"}[p.Int(7)]
	}
}

// renderObject renders members in one of several formattings. Members of a table become
// one object, at the place of the first of them.
func renderObject(members []formMember, p *picker) string {
	space := [...]string{"", " ", "\r\n\t"}[p.Int(3)]
	escaped := p.Int(8) - 7 // only 0 escapes a name
	var b strings.Builder
	b.WriteString([...]string{"", " \n"}[p.Int(2)] + "{" + space)
	tables := map[string]bool{}
	for i, m := range members {
		table, last, nested := strings.Cut(m.name, ".")
		name, value := m.name, m.json
		if nested {
			if tables[table] {
				continue
			}
			tables[table] = true
			var inner []string
			for _, other := range members[i:] {
				if t, last, ok := strings.Cut(other.name, "."); ok && t == table {
					inner = append(inner, fmt.Sprintf("%q:%s%s", last, space, other.json))
				}
			}
			_, name, value = last, table, "{"+strings.Join(inner, space+",")+space+"}"
		}
		if b.Len() > 0 && i > 0 {
			b.WriteString(space + "," + space)
		}
		key := `"` + name + `"`
		if escaped == 0 {
			key = fmt.Sprintf(`"\u%04x%s"`, name[0], name[1:])
		}
		b.WriteString(key + space + ":" + space + value)
	}
	b.WriteString(space + "}" + [...]string{"", "\n", " \t\r\n"}[p.Int(3)])
	return b.String()
}

// checkForm has a form read one of its objects. A valid object MUST get its meaning, and
// another one MUST be refused as invalid, with the name of the field that is wrong.
func (w *Simulation) checkForm(f *jsonForm, o *formObject) {
	body := []byte(o.text)
	got, refusal := f.read(body)
	clear(body) // the buffer of a request is used again
	if why := f.judge(o, got, refusal); why != "" {
		w.fail(CodecRoundTrip, fmt.Sprintf("%s %.200q (%s): %s", f.name, o.text, o.mistake, why))
	}
}

// judge returns why the result of an object is wrong, or "".
func (f *jsonForm) judge(o *formObject, got formValues, refusal *actor.Refusal) string {
	switch {
	case o.mistake != "" && refusal == nil:
		return "is accepted"
	case o.mistake != "" && (refusal.Reason != actor.Invalid || refusal.HTTP() != 400):
		return fmt.Sprintf("is refused as %v, want Invalid", refusal)
	case o.mistake != "" && !o.anyField && !f.unnamed && refusal.Field != o.field:
		return fmt.Sprintf("the refusal names field %q, want %q: %v", refusal.Field, o.field, refusal)
	case o.mistake != "":
		return ""
	case refusal != nil:
		return fmt.Sprintf("is refused: %v", refusal)
	}
	for i := range f.fields {
		name, want := f.fields[i].name, f.fields[i].absent
		if v, ok := o.want[name]; ok {
			want = v
		}
		if got[name] != want {
			return fmt.Sprintf("%s is read as %.80q, want %.80q", name, got[name], want)
		}
	}
	return ""
}
