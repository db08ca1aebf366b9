// Makes runs of a task's rows: columns in Arrow's layout, with the rows in the order of their subpartitions.
// `RunFrames` in tasks/frames.py reads them. Spark compiles this text in its executors, as it compiles the
// code that it makes for a query; generics and lambdas are unknown there.
//
// A run: the number of rows, then the number of nulls and of bytes of text of each column, each a long; then
// of each column the bitmap of its values (if it has nulls), the ends of its texts (if it is text) and its
// values, each beginning at a multiple of eight bytes, texts with eight bytes to spare. The last column is the
// number of the subpartition.

public Object generate(Object[] references) {
  return new SortedRuns((String) references[0]);
}

final class SortedRuns extends org.apache.spark.sql.execution.BufferedRowIterator {
  private static final int BYTES_MAX = 32 << 20;  // of a run, but for one large row
  private static final int ROWS_MAX = 1 << 17;
  private static final int BLOCK_ROWS = 512;  // few enough that their bytes stay in the processor's caches
  private static final int START = Platform.BYTE_ARRAY_OFFSET;

  private final byte[] kinds;
  private final int columns;
  private final int nullBytes;  // before the fields of a row
  private final int[] nulls;
  private final long[] textBytes;
  private final int[] textColumns;
  private scala.collection.Iterator input;
  private InternalRow waiting;
  private byte[] rows = new byte[1 << 14];
  private int[] places = new int[256];
  private int[] subpartitions = new int[256];
  private int[] order;  // places of the rows, ordered by subpartition
  private int count;
  private byte[] run;

  public SortedRuns(String layout) {
    kinds = layout.getBytes();
    columns = kinds.length;
    nullBytes = UnsafeRow.calculateBitSetWidthInBytes(columns);
    nulls = new int[columns];
    textBytes = new long[columns];
    textColumns = new int[layout.length() - layout.replace("t", "").length()];
    for (int column = 0, at = 0; column < columns; column++) {
      if (kinds[column] == 't') textColumns[at++] = column;
    }
  }

  public void init(int index, scala.collection.Iterator[] inputs) {
    input = inputs[0];
  }

  protected void processNext() throws java.io.IOException {
    collect();
    if (count > 0) append(new GenericInternalRow(new Object[] {sorted()}));
  }

  private void collect() {
    int used = 0;
    count = 0;
    java.util.Arrays.fill(nulls, 0);
    java.util.Arrays.fill(textBytes, 0L);
    if (rows.length > 2 * BYTES_MAX) rows = new byte[BYTES_MAX];
    while (count < ROWS_MAX && (waiting != null || input.hasNext())) {
      UnsafeRow row = (UnsafeRow) (waiting != null ? waiting : input.next());
      int size = row.getSizeInBytes();
      if (count > 0 && (long) used + size > BYTES_MAX) {
        waiting = row;
        return;
      }
      waiting = null;
      if (used + size > rows.length) grow(used, size);
      if (count == places.length) {
        places = java.util.Arrays.copyOf(places, 2 * count);
        subpartitions = java.util.Arrays.copyOf(subpartitions, 2 * count);
      }
      copy(row.getBaseObject(), row.getBaseOffset(), rows, START + used, size);
      places[count] = used;
      subpartitions[count] = row.getInt(columns - 1);
      measure(used);
      used += size;
      count++;
    }
  }

  private void grow(int used, int size) {
    byte[] larger = new byte[(int) Math.max((long) used + size, Math.min(2L * rows.length, BYTES_MAX))];
    System.arraycopy(rows, 0, larger, 0, used);
    rows = larger;
  }

  private void measure(int place) {
    for (int at = 0; at < textColumns.length; at++) {
      int column = textColumns[at];
      textBytes[column] += Platform.getInt(rows, START + place + nullBytes + 8 * column);
    }
    for (int at = 0; at < nullBytes; at += 8) {
      long bits = Platform.getLong(rows, START + place + at);
      while (bits != 0) {
        nulls[8 * at + Long.numberOfTrailingZeros(bits)]++;
        bits &= bits - 1;
      }
    }
  }

  private byte[] sorted() {
    sort();
    int bitmapBytes = padded((count + 7) / 8);
    int[] starts = new int[columns];
    long size = 8 + 16L * columns;
    for (int column = 0; column < columns; column++) {
      starts[column] = (int) size;
      if (nulls[column] > 0) size += bitmapBytes;
      byte kind = kinds[column];
      if (kind == 't') size += padded(4 * (count + 1)) + (textBytes[column] + 15 & ~7L);
      else if (kind == 'b') size += bitmapBytes;
      else if (kind == 'd') size += 16L * count;
      else if (kind != 'n') size += padded((kind - '0') * count);
    }
    run = new byte[Math.toIntExact(size)];
    Platform.putLong(run, START, count);
    for (int column = 0; column < columns; column++) {
      Platform.putLong(run, START + 8 + 16 * column, nulls[column]);
      Platform.putLong(run, START + 16 + 16 * column, textBytes[column]);
    }
    int[] ends = new int[columns];
    for (int first = 0; first < count; first += BLOCK_ROWS) {
      int end = Math.min(count, first + BLOCK_ROWS);
      for (int column = 0; column < columns; column++) {
        int values = starts[column];
        int field = nullBytes + 8 * column;
        if (nulls[column] > 0) {
          bitmap(first, end, values, column);
          values += bitmapBytes;
        }
        switch (kinds[column]) {
          case '8': longs(first, end, values, field); break;
          case '4': ints(first, end, values, field); break;
          case '2': shorts(first, end, values, field); break;
          case '1': bytes(first, end, values, field); break;
          case 'b': booleans(first, end, values, field); break;
          case 'd': decimals(first, end, values, field); break;
          case 't': ends[column] = texts(first, end, values, field, ends[column]); break;
        }
      }
    }
    byte[] made = run;
    run = null;
    return made;
  }

  private void sort() {
    int last = 0;
    for (int row = 0; row < count; row++) last = Math.max(last, subpartitions[row]);
    int[] next = new int[last + 2];
    for (int row = 0; row < count; row++) next[subpartitions[row] + 1]++;
    for (int subpartition = 0; subpartition < last; subpartition++) next[subpartition + 1] += next[subpartition];
    if (order == null || order.length < count) order = new int[places.length];
    for (int row = 0; row < count; row++) order[next[subpartitions[row]]++] = places[row];
  }

  private static int padded(int bytes) {
    return bytes + 7 & ~7;
  }

  // Copies whole words, and so up to seven bytes more.
  private static void copy(Object from, long at, byte[] to, long place, int size) {
    if (size > 256) {
      Platform.copyMemory(from, at, to, place, size);
      return;
    }
    for (int done = 0; done < size; done += 8) Platform.putLong(to, place + done, Platform.getLong(from, at + done));
  }

  private void bitmap(int first, int end, int to, int column) {
    int word = START + (column >> 6) * 8;
    for (int row = first; row < end; row++) {
      long valid = ~(Platform.getLong(rows, word + order[row]) >>> column) & 1L;
      run[to + (row >> 3)] |= valid << (row & 7);
    }
  }

  private void longs(int first, int end, int to, int field) {
    for (int row = first; row < end; row++) {
      Platform.putLong(run, START + to + 8L * row, Platform.getLong(rows, START + field + order[row]));
    }
  }

  private void ints(int first, int end, int to, int field) {
    for (int row = first; row < end; row++) {
      Platform.putInt(run, START + to + 4L * row, Platform.getInt(rows, START + field + order[row]));
    }
  }

  private void shorts(int first, int end, int to, int field) {
    for (int row = first; row < end; row++) {
      Platform.putShort(run, START + to + 2L * row, Platform.getShort(rows, START + field + order[row]));
    }
  }

  private void bytes(int first, int end, int to, int field) {
    for (int row = first; row < end; row++) run[to + row] = rows[field + order[row]];
  }

  private void booleans(int first, int end, int to, int field) {
    for (int row = first; row < end; row++) {
      run[to + (row >> 3)] |= (rows[field + order[row]] & 1) << (row & 7);
    }
  }

  // Spark's decimals: as few bytes as possible, the highest first. Arrow's: sixteen, the lowest first.
  private void decimals(int first, int end, int to, int field) {
    for (int row = first; row < end; row++) {
      long text = Platform.getLong(rows, START + field + order[row]);
      int from = order[row] + (int) (text >>> 32), size = (int) text;
      byte sign = (byte) (size > 0 && rows[from] < 0 ? -1 : 0);
      for (int at = 0; at < 16; at++) run[to + 16 * row + at] = at < size ? rows[from + size - 1 - at] : sign;
    }
  }

  private int texts(int first, int end, int to, int field, int used) {
    long values = START + to + padded(4 * (count + 1));
    for (int row = first; row < end; row++) {
      long text = Platform.getLong(rows, START + field + order[row]);
      copy(rows, START + order[row] + (text >>> 32), run, values + used, (int) text);
      used += (int) text;
      Platform.putInt(run, START + to + 4L * (row + 1), used);
    }
    return used;
  }
}
