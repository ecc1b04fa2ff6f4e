import assert from 'node:assert/strict';
import { create, fails, until } from '../harness.mjs';

const png = Buffer.from('\x89PNG\r\n\x1a\n', 'latin1');
const jpeg = Buffer.from('\xff\xd8\xff', 'latin1');

export default async function desktop(check) {
  if (!process.env.COVE_SCREEN) return;
  const sbx = await create({ snapshot: process.env.COVE_SCREEN });
  const { mouse, keyboard, screenshot, display } = sbx.computerUse;
  await check('a desktop that runs from the start', ['ComputerUse.start', 'ComputerUse.getStatus', 'Display.getInfo', 'Display.getWindows'], async () => {
    await sbx.computerUse.start();
    assert.equal((await sbx.computerUse.getStatus()).status, 'active');
    const [one] = (await display.getInfo()).displays;
    assert.deepEqual([one.width, one.height], [1280, 800]);
    const window = await until('a window', async () => (await display.getWindows()).windows[0]);
    assert.ok(window.id && window.width > 100, JSON.stringify(window));
  });
  await check('mouse and keyboard', ['Mouse.move', 'Mouse.click', 'Mouse.drag', 'Mouse.scroll', 'Mouse.getPosition', 'Keyboard.type', 'Keyboard.press', 'Keyboard.hotkey'], async () => {
    await mouse.move(100, 100);
    assert.deepEqual(await mouse.getPosition(), { x: 100, y: 100 });
    await mouse.click(110, 120);
    await keyboard.type('héllo ');
    await keyboard.press('a');
    await keyboard.press('b', ['shift']);
    await keyboard.hotkey('shift+c');
    await keyboard.press('Return');
    await until('what was typed', async () => (await sbx.fs.downloadFile('/tmp/typed')).toString() === 'héllo aBC\n');
    await mouse.drag(10, 10, 60, 70);
    assert.deepEqual(await mouse.getPosition(), { x: 60, y: 70 });
    assert.equal(await mouse.scroll(100, 100, 'down', 2), true);
    await fails(mouse.scroll(100, 100, 'sideways'), 'DaytonaValidationError', /sideways/);
  });
  await check('pictures of the screen', ['Screenshot.takeFullScreen', 'Screenshot.takeRegion', 'Screenshot.takeCompressed', 'Screenshot.takeCompressedRegion'], async () => {
    const read = async (shot) => Buffer.from((await shot).screenshot, 'base64');
    assert.ok((await read(screenshot.takeFullScreen(true))).subarray(0, 8).equals(png));
    const region = { x: 30, y: 40, width: 40, height: 30 }; // which reads the same in the order of takeRegion's
    const part = await read(screenshot.takeRegion(region));
    assert.deepEqual([part.readUInt32BE(16), part.readUInt32BE(20)], [40, 30]);
    assert.ok((await read(screenshot.takeCompressed({ format: 'jpeg', quality: 50, scale: 0.5 }))).subarray(0, 3).equals(jpeg));
    const small = await read(screenshot.takeCompressedRegion(region, { format: 'png', scale: 0.5 }));
    assert.deepEqual([small.readUInt32BE(16), small.readUInt32BE(20)], [20, 15]);
  });
}
