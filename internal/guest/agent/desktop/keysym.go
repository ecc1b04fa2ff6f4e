package desktop

import (
	_ "embed"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/cove-sh/cove/sandbox"
)

//go:embed keysyms.txt
var keysymFile string

// keysym is X's number of a symbol on a key.
type keysym = uint32

const (
	symNone      keysym = 0
	symBackspace keysym = 0xff08
	symTab       keysym = 0xff09
	symReturn    keysym = 0xff0d
	symEscape    keysym = 0xff1b
	symShift     keysym = 0xffe1
	symControl   keysym = 0xffe3
	symCapsLock  keysym = 0xffe5
	symAlt       keysym = 0xffe9
	symSuper     keysym = 0xffeb
	// symUnicode is the base of symbols that are code points.
	symUnicode keysym = 0x01000000
)

// keysyms is the table of names.
type keysyms struct {
	byName  map[string]keysym
	folded  map[string]keysym // by name in lower case
	byRune  map[rune]keysym   // if it differs from the code point
	letters map[keysym]rune   // the reverse of byRune, for all symbols with a character
}

// keysymTable is read on first use.
var keysymTable = sync.OnceValue(func() *keysyms {
	t := &keysyms{byName: map[string]keysym{}, folded: map[string]keysym{}, byRune: map[rune]keysym{}, letters: map[keysym]rune{}}
	for line := range strings.Lines(keysymFile) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "#" || name == "" {
			continue
		}
		number, char, _ := strings.Cut(rest, " ")
		n, err := strconv.ParseUint(number, 16, 32)
		if err != nil {
			panic(err) // the file is part of the program
		}
		sym := keysym(n)
		t.byName[name] = sym
		if low := strings.ToLower(name); t.folded[low] == symNone {
			t.folded[low] = sym
		}
		if char == "" {
			continue
		}
		r, err := strconv.ParseUint(char, 16, 32)
		if err != nil {
			panic(err)
		}
		if _, ok := t.byRune[rune(r)]; !ok && sym != keysym(r) {
			t.byRune[rune(r)] = sym
		}
		t.letters[sym] = rune(r)
	}
	return t
})

// aliases are common names of keys that have other names in X, in lower case and without
// "_", "-" and spaces.
var aliases = map[string]string{
	"enter": "Return", "return": "Return", "newline": "Return", "linefeed": "Linefeed",
	"esc": "Escape", "del": "Delete", "ins": "Insert", "bksp": "BackSpace", "bs": "BackSpace", "spacebar": "space",
	"up": "Up", "down": "Down", "left": "Left", "right": "Right",
	"arrowup": "Up", "arrowdown": "Down", "arrowleft": "Left", "arrowright": "Right",
	"uparrow": "Up", "downarrow": "Down", "leftarrow": "Left", "rightarrow": "Right",
	"pgup": "Page_Up", "pageup": "Page_Up", "prior": "Page_Up", "pgdn": "Page_Down", "pgdown": "Page_Down", "pagedown": "Page_Down", "next": "Page_Down",
	"ctrl": "Control_L", "control": "Control_L", "ctl": "Control_L", "lctrl": "Control_L", "ctrll": "Control_L", "leftctrl": "Control_L",
	"controlleft": "Control_L", "rctrl": "Control_R", "ctrlr": "Control_R", "rightctrl": "Control_R", "controlright": "Control_R",
	"shift": "Shift_L", "lshift": "Shift_L", "leftshift": "Shift_L", "shiftleft": "Shift_L",
	"rshift": "Shift_R", "rightshift": "Shift_R", "shiftright": "Shift_R",
	"alt": "Alt_L", "option": "Alt_L", "opt": "Alt_L", "lalt": "Alt_L", "leftalt": "Alt_L", "altleft": "Alt_L",
	"ralt": "Alt_R", "rightalt": "Alt_R", "altright": "Alt_R", "altgr": "ISO_Level3_Shift", "altgraph": "ISO_Level3_Shift",
	"cmd": "Super_L", "command": "Super_L", "super": "Super_L", "meta": "Super_L", "win": "Super_L", "windows": "Super_L", "os": "Super_L",
	"leftcmd": "Super_L", "metaleft": "Super_L", "superleft": "Super_L", "lwin": "Super_L",
	"rightcmd": "Super_R", "metaright": "Super_R", "superright": "Super_R", "rwin": "Super_R", "hyper": "Hyper_L",
	"caps": "Caps_Lock", "capslock": "Caps_Lock", "numlock": "Num_Lock", "scrolllock": "Scroll_Lock",
	"printscreen": "Print", "prtsc": "Print", "prtscr": "Print", "prtscn": "Print", "sysrq": "Sys_Req", "break": "Break",
	"menu": "Menu", "apps": "Menu", "contextmenu": "Menu", "help": "Help",
	"dash": "minus", "hyphen": "minus", "equals": "equal", "dot": "period", "backtick": "grave", "quote": "apostrophe",
	"leftbracket": "bracketleft", "rightbracket": "bracketright", "kpenter": "KP_Enter", "numpadenter": "KP_Enter",
	"volumeup": "XF86AudioRaiseVolume", "volumedown": "XF86AudioLowerVolume", "volumemute": "XF86AudioMute", "mute": "XF86AudioMute",
	"playpause": "XF86AudioPlay", "browserback": "XF86Back", "browserforward": "XF86Forward",
}

// maxKeyName bounds the name of a combination of keys.
const maxKeyName = 256

// parseKeys parses a combination such as "ctrl+shift+t" and returns the symbols of its
// keys in order.
func parseKeys(name string) ([]keysym, error) {
	if len(name) > maxKeyName {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "a combination of keys is longer than %d bytes; type text with the input \"type\"", maxKeyName)
	}
	var parts []string
	for rest := name; ; {
		// A plus sign at the beginning of a part is the key itself.
		at := strings.IndexByte(rest[min(1, len(rest)):], '+')
		if at < 0 {
			parts = append(parts, rest)
			break
		}
		parts = append(parts, rest[:at+1])
		rest = rest[at+2:]
	}
	syms := make([]keysym, len(parts))
	command := false
	for i, p := range parts {
		sym, ok := lookupKey(p)
		if !ok {
			return nil, sandbox.Errorf(sandbox.CodeInvalid, "the key %.64q of %.64q is unknown; use a character, or a name such as Return, ctrl, Page_Up, F5", p, name)
		}
		syms[i] = sym
		command = command || i < len(parts)-1 && isCommand(sym)
	}
	if command {
		// People write "Ctrl+C" for ctrl+c, and name Shift if they mean it.
		for i, sym := range syms {
			if sym >= 'A' && sym <= 'Z' {
				syms[i] = sym - 'A' + 'a'
			}
		}
	}
	return syms, nil
}

// isCommand reports whether a modifier turns letters into commands.
func isCommand(sym keysym) bool {
	return sym >= symControl && sym <= 0xffee && sym != symCapsLock && sym != symCapsLock+1
}

// lookupKey finds the symbol of a key by its name in X, an alias, or its character.
func lookupKey(name string) (keysym, bool) {
	if r, n := utf8.DecodeRuneInString(name); n == len(name) && n > 0 && r != utf8.RuneError {
		return runeKey(r)
	}
	trimmed := strings.TrimSpace(name)
	t := keysymTable()
	if sym, ok := t.byName[trimmed]; ok {
		return sym, sym != symNone
	}
	low := strings.ToLower(trimmed)
	if x, ok := aliases[strings.NewReplacer("_", "", "-", "", " ", "").Replace(low)]; ok {
		return t.byName[x], true
	}
	if sym, ok := t.folded[low]; ok && sym != symNone {
		return sym, true
	}
	if digits, ok := strings.CutPrefix(low, "u+"); ok {
		low = "u" + digits
	}
	if digits, ok := strings.CutPrefix(low, "u"); ok && len(digits) >= 4 && len(digits) <= 6 {
		if n, err := strconv.ParseUint(digits, 16, 32); err == nil {
			return runeKey(rune(n))
		}
	}
	return symNone, false
}

// runeKey returns the symbol of the key for a character, if there is one.
func runeKey(r rune) (keysym, bool) {
	switch r {
	case '\n', '\r':
		return symReturn, true
	case '\t':
		return symTab, true
	case '\b':
		return symBackspace, true
	case 0x1b:
		return symEscape, true
	}
	if !utf8.ValidRune(r) || unicode.Is(unicode.Cc, r) {
		return symNone, false
	}
	if r < 0x100 {
		return keysym(r), true
	}
	return symUnicode | keysym(r), true
}

// sameKey returns X's other symbol for a character: keyboards have one or the other.
func sameKey(sym keysym) keysym {
	if sym&0xff000000 != symUnicode {
		return symNone
	}
	return keysymTable().byRune[rune(sym&0xffffff)]
}

// upperKey returns the symbol that a letter's key produces with Shift if it has only one
// symbol.
func upperKey(sym keysym) keysym {
	r, ok := keysymTable().letters[sym]
	if !ok {
		if sym&0xff000000 != symUnicode {
			return symNone
		}
		r = rune(sym & 0xffffff)
	}
	upper := unicode.ToUpper(r)
	if upper == r {
		return symNone
	}
	key, _ := runeKey(upper)
	return key
}
