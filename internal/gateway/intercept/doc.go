// Package intercept puts the values of secrets into the requests of a sandbox
// that has placeholders only. It ends the sandbox's TLS with certificates of
// the installation's own authority, reads the HTTP in it, and speaks TLS, with
// certificates really verified, to the host that the sandbox meant. It runs in
// the sandbox's cell, as the [egress.Interceptor] of its gateway.
//
// # Where a value goes
//
// Only to a host of the secret's list, over TLS, and only in the place of the
// placeholder, where a client put it:
//
//   - in any header, since clients differ in where they put a token. Left out
//     are headers that servers show, log or pass on, such as User-Agent and
//     Referer, unless the secret names one;
//   - in basic authentication, as the password of the secret's user;
//   - in the query parameter that the secret names, if its Auth is of that type;
//   - in bodies of up to [sandbox.MaxSecretBody] bytes, if its Auth asks for it.
//
// Paths, and the messages of WebSockets, are never changed. A placeholder that
// goes elsewhere is only what it is: it is sent, or the request refused, as the
// policy says, and recorded in either case. It is looked for in headers, the
// path and the query of every request; in bodies only where it would be put.
//
// # What comes back
//
// A host may send back what it was sent. In responses of a secret's hosts the
// value is replaced by the placeholder: in headers and trailers, and in bodies
// of any type, byte for byte, so that lengths stay what they were. Such hosts
// are asked for bodies without compression. What cannot be caught: a value that
// the host sends back in another form (compressed in spite of it, hashed, in
// another encoding, in pieces of several responses), and values of less than 8
// bytes. A secret should be for hosts that do not echo.
//
// A host may say what the sandbox tells it to. So no mask is made of text of
// the sandbox's choice, and what is held back of a response, until when, and
// how it is searched, follows from the structure of the response and never from
// a value; see veil.
//
// # What else happens in TLS
//
// A request whose host is not the connection's name is refused, and so is
// CONNECT. Requests are parsed and written anew, so what is ambiguous in one is
// not passed on. TLS with another protocol inside is carried over a new TLS
// connection, unchanged; clients that offer only application protocols other
// than HTTP are connected as they are, unless a secret is for the host: then
// they are refused. Certificates of clients cannot be passed on.
package intercept
