// What the collections expect of a runtime and Node has by itself from 20 on. Debian's is 18.
import { File } from 'node:buffer';
import { webcrypto } from 'node:crypto';

globalThis.crypto ??= webcrypto;
globalThis.File ??= File;
