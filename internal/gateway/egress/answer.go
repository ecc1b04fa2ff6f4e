package egress

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/sandbox"
)

// reply is an answer to the sandbox before it is packed.
type reply struct {
	code dnsmessage.RCode
	// names is the CNAME chain of the question's name, and addrs its addresses.
	names []string
	addrs []netip.Addr
	// records are records of other types.
	records []dnsmessage.Resource
	ttl     time.Duration
	// why is the reason of a refusal, sent as an extended DNS error (RFC 8914).
	why string
	// event is recorded if it has a verdict.
	event sandbox.NetworkEvent
}

// typeName returns the usual name of a record type, such as "HTTPS".
func typeName(t dnsmessage.Type) string { return strings.TrimPrefix(t.String(), "Type") }

// shownName returns a question's name for the log.
func shownName(q dnsmessage.Question) string {
	return clip.Text(strings.TrimSuffix(q.Name.String(), "."), maxShown)
}

// question is a parsed query of the sandbox.
type question struct {
	header dnsmessage.Header
	q      dnsmessage.Question
	// size is the largest UDP answer that the client accepts, and edns reports whether the
	// client sent an OPT record.
	size int
	edns bool
}

// parseQuestion parses a query of the sandbox. It returns false for messages that get no
// answer. If the code is not success, the code is the answer.
func parseQuestion(b []byte) (question, dnsmessage.RCode, bool) {
	var p dnsmessage.Parser
	h, err := p.Start(b)
	if err != nil || h.Response {
		return question{}, 0, false
	}
	in := question{header: h, size: 512}
	if h.OpCode != 0 {
		return in, dnsmessage.RCodeNotImplemented, true
	}
	all, err := p.AllQuestions()
	if err != nil || len(all) != 1 {
		return in, dnsmessage.RCodeFormatError, true
	}
	in.q = all[0]
	if in.q.Class != dnsmessage.ClassINET {
		return in, dnsmessage.RCodeRefused, true
	}
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return in, dnsmessage.RCodeFormatError, true
	}
	for range 8 {
		rh, err := p.AdditionalHeader()
		if err != nil {
			break
		}
		if rh.Type == dnsmessage.TypeOPT {
			in.edns, in.size = true, min(max(int(rh.Class), 512), udpAnswer)
		}
		if p.SkipAdditional() != nil {
			break
		}
	}
	return in, dnsmessage.RCodeSuccess, true
}

// answer returns the answer to a message of the sandbox, or nil if there is none.
func (r *resolver) answer(ctx context.Context, msg []byte, proto string) []byte {
	start := time.Now()
	in, code, ok := parseQuestion(msg)
	if !ok {
		return nil
	}
	rep := reply{code: code}
	if code == dnsmessage.RCodeSuccess {
		s := r.g.state.Load()
		switch {
		case s == nil:
			rep.code = dnsmessage.RCodeRefused
		case !s.perSecond.Allow():
			rep.code = dnsmessage.RCodeRefused
			r.g.limited("connections_per_second", sandbox.NetworkEvent{Kind: sandbox.NetworkDNS, Protocol: proto,
				Host: shownName(in.q), Question: typeName(in.q.Type)})
		default:
			rep = r.reply(ctx, s, in.q)
		}
	}
	if e := rep.event; e.Verdict != "" {
		e.Kind, e.Protocol, e.Question = sandbox.NetworkDNS, proto, typeName(in.q.Type)
		if e.Host == "" {
			e.Host = shownName(in.q)
		}
		for _, a := range rep.addrs {
			e.Answers = append(e.Answers, a.String())
		}
		e.DurationMS = time.Since(start).Milliseconds()
		r.g.record(e)
	}
	size := 65535
	if proto == "udp" {
		size = in.size
	}
	return pack(in, rep, size)
}

// reply decides how to answer a question.
//
// If the policy cannot allow a name, the sandbox is told that the name does not exist:
// after a refusal, programs would retry for seconds.
func (r *resolver) reply(ctx context.Context, s *state, q dnsmessage.Question) reply {
	name, ok := hostname(q.Name.String())
	if !ok {
		return reply{code: dnsmessage.RCodeNameError}
	}
	top := name[strings.LastIndexByte(name, '.')+1:]
	switch {
	case top == "localhost":
		return local(q.Type)
	case top == peerDomain:
		return r.peer(s, name, q.Type)
	case !publicName(name):
		return reply{code: dnsmessage.RCodeNameError}
	case q.Type == dnsmessage.TypeALL || q.Type == dnsmessage.TypeAXFR:
		return reply{code: dnsmessage.RCodeNotImplemented}
	}
	d := s.policy.resolvable(name)
	if d.Ask {
		return r.standIn(name, q.Type, d)
	}
	if !d.Allow {
		return reply{code: dnsmessage.RCodeNameError, why: d.Reason, event: sandbox.NetworkEvent{Host: name,
			Verdict: sandbox.NetworkBlocked, Match: d.Match, Rule: d.Rule, Reason: d.Reason}}
	}
	e := sandbox.NetworkEvent{Host: name, Verdict: sandbox.NetworkAllowed, Match: d.Match, Rule: d.Rule}
	switch q.Type {
	case dnsmessage.TypeAAAA:
		if !r.g.cfg.IPv6 {
			return reply{ttl: minTTL} // not recorded, since nothing was looked up
		}
		return r.addressReply(ctx, s, name, q.Type, e)
	case dnsmessage.TypeA, dnsmessage.TypeCNAME:
		return r.addressReply(ctx, s, name, q.Type, e)
	case dnsmessage.TypeHTTPS, dnsmessage.TypeSVCB:
		return r.forward(ctx, q, e)
	}
	if !s.policy.allowsByDefault() {
		// Other record types can carry arbitrary data in both directions.
		e.Verdict, e.Match = sandbox.NetworkBlocked, sandbox.MatchProtocol
		e.Reason = "the policy lists what is allowed, so names are looked up only for addresses"
		return reply{ttl: minTTL, why: e.Reason, event: e}
	}
	return r.forward(ctx, q, e)
}

// standIn answers for a name that needs an approval when the sandbox connects, with a
// synthetic address that stands for the name. The name is looked up only once it is
// allowed, since a query to its name server is itself a message.
func (r *resolver) standIn(name string, t dnsmessage.Type, d Decision) reply {
	if t != dnsmessage.TypeA {
		return reply{ttl: minTTL} // not recorded, since nothing was looked up
	}
	return reply{addrs: []netip.Addr{r.synthetic.give(name)}, ttl: minTTL, event: sandbox.NetworkEvent{Host: name,
		Verdict: sandbox.NetworkAllowed, Match: d.Match, Rule: d.Rule, Reason: "not looked up yet: the address stands for the name until somebody allows it"}}
}

// publicName reports whether a name can exist on the Internet. Single-label names and names
// reserved for one machine or one local network cannot; a proxy that resolves names might
// know them in its own network.
func publicName(name string) bool {
	top := name[strings.LastIndexByte(name, '.')+1:]
	return top != name && top != "local" && top != "localhost" && top != peerDomain
}

func local(t dnsmessage.Type) reply {
	rep := reply{ttl: maxTTL}
	switch t {
	case dnsmessage.TypeA:
		rep.addrs = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	case dnsmessage.TypeAAAA:
		rep.addrs = []netip.Addr{netip.IPv6Loopback()}
	}
	return rep
}

// peer answers for another sandbox, NAME.sandbox.
func (r *resolver) peer(s *state, name string, t dnsmessage.Type) reply {
	peer := strings.TrimSuffix(name, "."+peerDomain)
	e := sandbox.NetworkEvent{Host: name, Verdict: sandbox.NetworkAllowed, Match: sandbox.MatchSandbox, Rule: "allow " + peerPrefix + peer}
	if r.g.cfg.Peers == nil || name == peerDomain || !s.policy.peerAllowed(peer) {
		e.Verdict, e.Rule, e.Reason = sandbox.NetworkBlocked, "", "no rule allows "+peerPrefix+peer
		return reply{code: dnsmessage.RCodeNameError, why: e.Reason, event: e}
	}
	if t != dnsmessage.TypeA {
		return reply{ttl: minTTL}
	}
	return reply{addrs: []netip.Addr{r.synthetic.give(name)}, ttl: minTTL, event: e}
}

// addressReply answers with the addresses of a name that the sandbox may reach, and pins
// them.
func (r *resolver) addressReply(ctx context.Context, s *state, name string, t dnsmessage.Type, e sandbox.NetworkEvent) reply {
	ask := t
	if t == dnsmessage.TypeCNAME {
		ask = dnsmessage.TypeA
	}
	l, err := r.lookup(ctx, name, ask)
	if err != nil && ask == dnsmessage.TypeA && r.g.out.resolves(name) {
		a := r.synthetic.give(name) // the proxy will resolve the name
		return reply{addrs: []netip.Addr{a}, ttl: minTTL, event: e}
	}
	if err != nil {
		e.Verdict, e.Reason = sandbox.NetworkFailed, Reason(err)
		code := dnsmessage.RCodeServerFailure
		if errors.Is(err, errNoName) {
			code = dnsmessage.RCodeNameError
		}
		return reply{code: code, event: e}
	}
	rep := reply{names: l.chain, ttl: max(time.Until(l.until), time.Second), event: e}
	if t == dnsmessage.TypeCNAME {
		return rep
	}
	var refused netip.Addr
	for _, a := range l.addrs {
		if r.isClosedInternal(s, a) {
			refused = a
			continue
		}
		rep.addrs = append(rep.addrs, a)
	}
	if refused.IsValid() && len(rep.addrs) == 0 {
		rep.event.Verdict, rep.event.Match, rep.event.Rule = sandbox.NetworkBlocked, sandbox.MatchInternal, "internal "+refused.String()
		rep.event.Reason = name + " resolves to " + refused.String() + ", an internal address of the host's network; to allow it, add its address to rules"
		return reply{code: dnsmessage.RCodeNameError, why: rep.event.Reason, event: rep.event}
	}
	r.pins.add(name, rep.addrs, rep.ttl)
	return rep
}

// isClosedInternal reports whether an address is internal and no rule opens it for any
// protocol or port.
func (r *resolver) isClosedInternal(s *state, a netip.Addr) bool {
	a = plain(a)
	if !r.g.internal.Has(a) {
		return false
	}
	return !slices.ContainsFunc(s.policy.rules, func(ru *rule) bool {
		return ru.opens && ru.addrs.Contains(a) && r.g.internal.covers(ru.addrs)
	})
}

// forward forwards a question upstream and returns the records of the requested type. It
// removes what would let programs bypass the gateway: addresses, and keys that encrypt
// server names.
func (r *resolver) forward(ctx context.Context, q dnsmessage.Question, e sandbox.NetworkEvent) reply {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	m, err := r.up.ask(ctx, q)
	if err != nil {
		e.Verdict, e.Reason = sandbox.NetworkFailed, Reason(err)
		return reply{code: dnsmessage.RCodeServerFailure, event: e}
	}
	rep := reply{code: m.RCode, ttl: maxTTL, event: e}
	for _, a := range m.Answers {
		if a.Header.Type != q.Type && a.Header.Type != dnsmessage.TypeCNAME {
			continue
		}
		rep.ttl = min(rep.ttl, time.Duration(a.Header.TTL)*time.Second)
		switch body := a.Body.(type) {
		case *dnsmessage.OPTResource:
			continue // belongs to a message, not to a name
		case *dnsmessage.HTTPSResource:
			if !stripService(&body.SVCBResource) {
				continue
			}
		case *dnsmessage.SVCBResource:
			if !stripService(body) {
				continue
			}
		}
		rep.records = append(rep.records, a)
	}
	return rep
}

// stripService removes addresses and keys of encrypted ClientHellos from a service
// record. It returns false if the record is useless without them.
func stripService(s *dnsmessage.SVCBResource) bool {
	if mandatory, ok := s.GetParam(dnsmessage.SVCParamMandatory); ok {
		for i := 0; i+1 < len(mandatory); i += 2 {
			if bypasses(dnsmessage.SVCParamKey(mandatory[i])<<8 | dnsmessage.SVCParamKey(mandatory[i+1])) {
				return false
			}
		}
	}
	s.Params = slices.DeleteFunc(s.Params, func(p dnsmessage.SVCParam) bool { return bypasses(p.Key) })
	return true
}

// bypasses reports whether a parameter of a service record could be used to bypass the
// gateway.
func bypasses(k dnsmessage.SVCParamKey) bool {
	return k == dnsmessage.SVCParamECH || k == dnsmessage.SVCParamIPv4Hint || k == dnsmessage.SVCParamIPv6Hint
}

// pack encodes a reply, without its records and with the truncation bit if it is larger
// than size.
func pack(in question, rep reply, size int) []byte {
	msg, err := packAll(in, rep, false)
	if err != nil {
		msg, err = packAll(in, reply{code: dnsmessage.RCodeServerFailure}, false)
	}
	if err == nil && len(msg) > size {
		msg, err = packAll(in, reply{code: rep.code}, true)
	}
	if err != nil {
		return nil
	}
	return msg
}

func packAll(in question, rep reply, truncated bool) ([]byte, error) {
	answers, err := rep.answers(in.q.Name)
	if err != nil {
		return nil, err
	}
	m := dnsmessage.Message{
		Header: dnsmessage.Header{ID: in.header.ID, Response: true, OpCode: in.header.OpCode, RCode: rep.code,
			RecursionDesired: in.header.RecursionDesired, RecursionAvailable: true, Truncated: truncated},
		Answers: answers,
	}
	if in.q.Name.Length > 0 {
		m.Questions = []dnsmessage.Question{in.q}
	}
	if in.edns {
		var opt dnsmessage.OPTResource
		if rep.why != "" {
			opt.Options = []dnsmessage.Option{{Code: optExtendedError, Data: append([]byte{0, infoBlocked}, rep.why...)}}
		}
		m.Additionals = []dnsmessage.Resource{edns(&opt)}
	}
	return m.Pack()
}

// answers returns the records of a reply to a question for a name.
func (rep *reply) answers(name dnsmessage.Name) ([]dnsmessage.Resource, error) {
	ttl := uint32(min(max(rep.ttl, time.Second), maxTTL) / time.Second)
	var all []dnsmessage.Resource
	add := func(body dnsmessage.ResourceBody) {
		all = append(all, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET, TTL: ttl}, Body: body,
		})
	}
	for _, alias := range rep.names {
		to, err := dnsmessage.NewName(alias + ".")
		if err != nil {
			return nil, err
		}
		add(&dnsmessage.CNAMEResource{CNAME: to})
		name = to
	}
	for _, a := range rep.addrs {
		if a.Is4() {
			add(&dnsmessage.AResource{A: a.As4()})
		} else {
			add(&dnsmessage.AAAAResource{AAAA: a.As16()})
		}
	}
	for _, rr := range rep.records {
		rr.Header.TTL = min(rr.Header.TTL, ttl)
		all = append(all, rr)
	}
	return all, nil
}

const (
	// optExtendedError is the EDNS option "extended DNS error", and infoBlocked its
	// code for a name that a policy blocks.
	optExtendedError = 15
	infoBlocked      = 15
)

// edns returns the OPT record of a message.
func edns(opt *dnsmessage.OPTResource) dnsmessage.Resource {
	var h dnsmessage.ResourceHeader
	_ = h.SetEDNS0(udpAnswer, dnsmessage.RCodeSuccess, false) // never fails
	return dnsmessage.Resource{Header: h, Body: opt}
}
