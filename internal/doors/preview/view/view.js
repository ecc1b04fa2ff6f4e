// The live view of a computer: noVNC on a WebSocket of this host. The link is in
// the address; what it allows is decided by the server, whatever is done here.
import RFB from '/novnc.js';

const control = document.body.dataset.control === 'true';
const expires = Date.parse(document.body.dataset.expires);
const place = document.getElementById('screen');
const state = document.getElementById('state');
const note = document.getElementById('note');
// again is how long to wait before another look, and steady for how long there
// must have been a picture that another try needs no wait.
const again = 2000;
const steady = 10000;
const longest = 30000;

let rfb;
let began = 0; // when the picture came; 0: it did not
let wait = again;

function tell(text, live = false) {
  state.textContent = text;
  state.classList.toggle('live', live);
}

function show(title, detail) {
  document.getElementById('title').textContent = title;
  document.getElementById('detail').textContent = detail;
  note.hidden = !title;
}

function connect() {
  const at = new URL('/screen' + location.search, location.href);
  at.protocol = at.protocol === 'https:' ? 'wss:' : 'ws:';
  rfb = new RFB(place, at.href, { shared: true });
  rfb.viewOnly = !control;
  rfb.scaleViewport = true;
  rfb.background = '#0a0e13';
  rfb.focusOnClick = control;
  began = 0;
  rfb.addEventListener('connect', () => {
    began = Date.now();
    tell('Live', true);
    show('', '');
    if (control) rfb.focus();
  });
  rfb.addEventListener('disconnect', () => { rfb = undefined; look(); });
}

// look asks why there is nothing to see, and tries again if that may change.
async function look() {
  tell('Not connected');
  let answer = { code: 'unavailable', title: 'The server does not answer', detail: 'This page tries again by itself.' };
  try {
    const response = await fetch('/state' + location.search, { cache: 'no-store' });
    answer = await response.json();
  } catch { /* the server may be restarting */ }
  if (answer.code === 'live') {
    if (began && Date.now() - began > steady) {
      wait = again;
      connect();
      return;
    }
    // It runs, but there was no picture, or it went at once.
    show('No picture', 'The computer runs, but its screen cannot be watched now. This page tries again by itself.');
    setTimeout(connect, wait);
    wait = Math.min(2 * wait, longest);
    return;
  }
  show(answer.title, answer.detail);
  if (answer.code === 'forbidden' || answer.code === 'not_found') return;
  setTimeout(look, again);
}

document.getElementById('full').addEventListener('click', () => {
  if (document.fullscreenElement) document.exitFullscreen();
  else document.documentElement.requestFullscreen();
});
setInterval(() => {
  const left = Math.round((expires - Date.now()) / 1000);
  if (rfb && left < 60) tell(left > 0 ? `Live, for ${left} s more` : 'Live', true);
}, 1000);

connect();
