import assert from 'node:assert/strict';
import { create, fails, until } from '../harness.mjs';

const png = Buffer.from('\x89PNG\r\n\x1a\n', 'latin1');

export default async function desktop(check) {
  if (!process.env.COVE_SCREEN) return;
  const sbx = await create({ template: process.env.COVE_SCREEN });
  const d = sbx.desktop;
  const typed = async () => (await sbx.files.read('/tmp/typed'));
  await check('pictures of the screen', ['Desktop.screenshot', 'Desktop.screenshotRegion', 'Desktop.getDisplayInfo', 'Desktop.getAvailableResolutions'], async () => {
    const shot = await d.screenshot();
    assert.deepEqual([shot.format, shot.width, shot.height], ['png', 1280, 800]);
    assert.ok(Buffer.from(shot.image, 'base64').subarray(0, 8).equals(png));
    const region = await d.screenshotRegion(0, 0, 40, 30);
    assert.ok(region.subarray(0, 8).equals(png));
    assert.deepEqual([region.readUInt32BE(16), region.readUInt32BE(20)], [40, 30]);
    const info = await d.getDisplayInfo();
    assert.deepEqual([info.width, info.height], [1280, 800]);
    assert.deepEqual(await d.getAvailableResolutions(), [[1280, 800]]);
  });
  await check('mouse and keyboard', [
    'Desktop.mouseClick', 'Desktop.mouseMove', 'Desktop.mouseDrag', 'Desktop.mouseScroll', 'Desktop.dragDrop', 'Desktop.keyboardType', 'Desktop.keyboardPress', 'Desktop.keyboardCombination', 'Desktop.hotkey',
  ], async () => {
    await d.mouseMove(100, 100);
    await d.mouseClick(100, 100);
    await d.keyboardType('héllo ');
    await d.keyboardPress('a');
    await d.keyboardCombination(['shift', 'b']);
    await d.hotkey(['shift'], 'c');
    await d.keyboardPress('Return');
    await until('what was typed', async () => (await typed()) === 'héllo aBC\n');
    await d.mouseDrag(10, 10, 60, 60);
    await d.dragDrop(10, 10, 60, 60);
    await d.mouseScroll(100, 100, 2);
  });
  await check('the clipboard', ['Desktop.setClipboard', 'Desktop.getClipboard'], async () => {
    await d.setClipboard('cöpied');
    assert.equal(await d.getClipboard(), 'cöpied');
  });
  await check('windows', ['Desktop.listWindows', 'Desktop.resizeWindow', 'Desktop.captureWindow', 'Desktop.closeWindow'], async () => {
    const [w] = await d.listWindows();
    assert.ok(w.id && w.width > 100 && w.height > 100, JSON.stringify(w));
    await d.resizeWindow(w.id, 400, 300);
    await until('its size', async () => Math.abs((await d.listWindows())[0].width - 400) < 20);
    assert.ok((await d.captureWindow(w.id)).subarray(0, 8).equals(png));
    await fails(d.captureWindow('1'), 'APIError', /404/);
    await fails(d.closeWindow('none'), 'APIError', /window_id/);
    await d.closeWindow(w.id);
  });
  await check('a live view', ['Desktop.startVnc', 'Desktop.getVncInfo', 'Desktop.getVncUrl'], async () => {
    assert.match((await d.startVnc()).url, /^https?:\/\/view-/);
    assert.match((await d.getVncInfo()).url, /^https?:/);
    assert.match(await d.getVncUrl(), /cove_view=/);
  });
  const refused = {
    stopVnc: [], getClipboardHistory: [], startRecording: ['/tmp/x.mp4'], stopRecording: [], getRecordingStatus: [], downloadRecording: ['one'], setResolution: [800, 600],
    ocr: [0, 0, 10, 10], findElement: ['x'], waitFor: ['x'], getBounds: ['x'], getDebugLogs: [], getDebugProcesses: [],
  };
  await check('what a desktop is refused', Object.keys(refused).map((m) => `Desktop.${m}`), async () => {
    for (const [method, args] of Object.entries(refused)) await fails(d[method](...args), 'DesktopNotAvailableError', /Cove does not serve .*desktop/);
  });
}
