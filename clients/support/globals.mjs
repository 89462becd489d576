// Globals that the collections need. Node has them from version 20; Debian's Node is 18.
import { File } from 'node:buffer';
import { webcrypto } from 'node:crypto';

globalThis.crypto ??= webcrypto;
globalThis.File ??= File;
