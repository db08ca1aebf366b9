// Makes Spark's rows of record batches, each a row with the bytes of one message of Arrow's and eight bytes or
// more behind it. Spark compiles this text in its executors, as it compiles the code that it makes for a query;
// generics and lambdas are unknown there.

public Object generate(Object[] references) {
  return new StoredRows((String) references[0]);
}

final class StoredRows extends org.apache.spark.sql.execution.BufferedRowIterator {
  private static final int BLOCK_ROWS = 256;
  private static final int BLOCK_BYTES = 1 << 17;  // so that rows are still in the processor's caches when read
  private static final int START = Platform.BYTE_ARRAY_OFFSET;

  private final byte[] kinds;
  private final int columns;
  private final int nullBytes;  // before the fields of a row
  private final int[] nulls;
  private final int[] bitmaps;  // places in the message
  private final int[] values;
  private final int[] texts;
  private scala.collection.Iterator messages;
  private byte[] message;
  private int count;
  private int first;  // row of the message that comes next
  private final int[] places = new int[BLOCK_ROWS];
  private final int[] sizes = new int[BLOCK_ROWS];
  private final int[] ends = new int[BLOCK_ROWS];
  private byte[] block = new byte[0];
  private int made;
  private int given;
  private final UnsafeRow row;

  public StoredRows(String layout) {
    kinds = layout.getBytes();
    columns = kinds.length;
    nullBytes = UnsafeRow.calculateBitSetWidthInBytes(columns);
    nulls = new int[columns];
    bitmaps = new int[columns];
    values = new int[columns];
    texts = new int[columns];
    row = new UnsafeRow(columns);
  }

  public void init(int index, scala.collection.Iterator[] inputs) {
    messages = inputs[0];
  }

  public boolean hasNext() throws java.io.IOException {
    while (given == made) {
      if (first < count) make();
      else if (messages.hasNext()) open(((InternalRow) messages.next()).getBinary(0));
      else return false;
    }
    return true;
  }

  public InternalRow next() {
    row.pointTo(block, START + places[given], sizes[given]);
    given++;
    return row;
  }

  protected void processNext() {}

  private void open(byte[] bytes) {
    message = bytes;
    first = 0;
    java.nio.ByteBuffer buffer = java.nio.ByteBuffer.wrap(bytes);
    int body = 8 + Platform.getInt(bytes, START + 4);
    buffer.position(8);
    org.apache.arrow.flatbuf.RecordBatch batch = new org.apache.arrow.flatbuf.RecordBatch();
    org.apache.arrow.flatbuf.Message.getRootAsMessage(buffer).header(batch);
    count = (int) batch.length();
    int next = 0;
    for (int column = 0; column < columns; column++) {
      nulls[column] = (int) batch.nodes(column).nullCount();
      if (kinds[column] == 'n') continue;
      bitmaps[column] = body + (int) batch.buffers(next++).offset();
      values[column] = body + (int) batch.buffers(next++).offset();
      if (kinds[column] == 't') texts[column] = body + (int) batch.buffers(next++).offset();
    }
  }

  private void make() {
    int rows = layOut();
    for (int at = 0; at < rows; at++) ends[at] = places[at] + nullBytes + 8 * columns;
    for (int column = 0; column < columns; column++) {
      int field = nullBytes + 8 * column;
      switch (kinds[column]) {
        case '8': longs(rows, values[column], field); break;
        case '4': ints(rows, values[column], field); break;
        case '2': shorts(rows, values[column], field); break;
        case '1': bytes(rows, values[column], field); break;
        case 'b': booleans(rows, values[column], field); break;
        case 'd': decimals(rows, column, field); break;
        case 't': texts(rows, column, field); break;
      }
      if (nulls[column] > 0) nulls(rows, column, field);
    }
    first += rows;
    made = rows;
    given = 0;
  }

  // Gives each row a place in the block, and returns how many rows have one.
  private int layOut() {
    int most = Math.max(1, BLOCK_BYTES / (nullBytes + 8 * columns));  // else those left out are sized again
    int rows = Math.min(Math.min(BLOCK_ROWS, most), count - first);
    java.util.Arrays.fill(sizes, 0, rows, nullBytes + 8 * columns);
    for (int column = 0; column < columns; column++) {
      if (kinds[column] == 't') {
        for (int at = 0; at < rows; at++) sizes[at] += padded(textSize(column, first + at));
      } else if (kinds[column] == 'd') {
        for (int at = 0; at < rows; at++) sizes[at] += 16;
      }
    }
    int used = 0, placed = 0;
    while (placed < rows && (placed == 0 || (long) used + sizes[placed] <= BLOCK_BYTES)) {
      places[placed] = used;
      used += sizes[placed++];
    }
    if (block.length < used || block.length > 2 * BLOCK_BYTES) block = new byte[Math.max(used, BLOCK_BYTES)];
    else java.util.Arrays.fill(block, 0, used, (byte) 0);
    return placed;
  }

  private static int padded(int bytes) {
    return bytes + 7 & ~7;
  }

  private boolean isNull(int column, int at) {
    return nulls[column] > 0 && (kinds[column] == 'n' || (message[bitmaps[column] + (at >> 3)] >> (at & 7) & 1) == 0);
  }

  private int textSize(int column, int at) {
    if (isNull(column, at)) return 0;
    long end = START + values[column] + 4L * at;
    return Platform.getInt(message, end + 4) - Platform.getInt(message, end);
  }

  private void nulls(int rows, int column, int field) {
    for (int at = 0; at < rows; at++) {
      if (isNull(column, first + at)) {
        long word = START + places[at] + (column >> 6) * 8;
        Platform.putLong(block, word, Platform.getLong(block, word) | 1L << column);
        Platform.putLong(block, START + places[at] + field, 0L);
      }
    }
  }

  private void longs(int rows, int from, int field) {
    for (int at = 0; at < rows; at++) {
      long value = Platform.getLong(message, START + from + 8L * (first + at));
      Platform.putLong(block, START + field + places[at], value);
    }
  }

  private void ints(int rows, int from, int field) {
    for (int at = 0; at < rows; at++) {
      int value = Platform.getInt(message, START + from + 4L * (first + at));
      Platform.putInt(block, START + field + places[at], value);
    }
  }

  private void shorts(int rows, int from, int field) {
    for (int at = 0; at < rows; at++) {
      short value = Platform.getShort(message, START + from + 2L * (first + at));
      Platform.putShort(block, START + field + places[at], value);
    }
  }

  private void bytes(int rows, int from, int field) {
    for (int at = 0; at < rows; at++) block[field + places[at]] = message[from + first + at];
  }

  private void booleans(int rows, int from, int field) {
    for (int at = 0; at < rows; at++) {
      int bit = first + at;
      block[field + places[at]] = (byte) (message[from + (bit >> 3)] >> (bit & 7) & 1);
    }
  }

  // Arrow's decimals: sixteen bytes, the lowest first. Spark's: as few as possible, the highest first.
  private void decimals(int rows, int column, int field) {
    for (int at = 0; at < rows; at++) {
      if (!isNull(column, first + at)) {
        int from = values[column] + 16 * (first + at), size = 16;
        while (size > 1 && message[from + size - 1] == message[from + size - 2] >> 7) size--;
        for (int to = 0; to < size; to++) block[ends[at] + to] = message[from + size - 1 - to];
        put(at, field, size);
      }
      ends[at] += 16;
    }
  }

  private void texts(int rows, int column, int field) {
    long offsets = START + values[column], from = START + texts[column];
    for (int at = 0; at < rows; at++) {
      int size = textSize(column, first + at);
      long text = from + Platform.getInt(message, offsets + 4L * (first + at));
      long to = START + ends[at];
      if (size > 64) {
        Platform.copyMemory(message, text, block, to, size);
      } else {
        int done = 0;
        for (; done + 8 <= size; done += 8) Platform.putLong(block, to + done, Platform.getLong(message, text + done));
        int rest = size - done;  // a row ends with zeros
        if (rest > 0) Platform.putLong(block, to + done, Platform.getLong(message, text + done) & -1L >>> 64 - 8 * rest);
      }
      put(at, field, size);
      ends[at] += padded(size);
    }
  }

  private void put(int at, int field, int size) {
    Platform.putLong(block, START + field + places[at], (long) (ends[at] - places[at]) << 32 | size);
  }
}
