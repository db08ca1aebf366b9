// The rows that Spark has made.
final class RowInput extends Input {
  private final int nullBytes;  // before the fields of a row
  private final int[] nulls;
  private final long[] textBytes;
  private final int[] textColumns;
  private UnsafeRow waiting;
  private byte[] rows = new byte[1 << 14];

  RowInput(String layout) {
    super(layout, 512);  // few enough that their bytes stay in the processor's caches
    nullBytes = UnsafeRow.calculateBitSetWidthInBytes(columns.length);
    nulls = new int[columns.length];
    textBytes = new long[columns.length];
    textColumns = new int[layout.length() - layout.replace("t", "").length()];
    for (int at = 0, next = 0; at < columns.length; at++) {
      Column column = columns[at];
      column.start += nullBytes + 8 * at;
      column.step = column.textStep = 1;
      column.nullStart += at >> 3;
      column.nullBit = at & 7;
      if (column.kind == 't') textColumns[next++] = at;
    }
  }

  protected void take() {
    int used = 0;
    Arrays.fill(nulls, 0);
    Arrays.fill(textBytes, 0L);
    if (rows.length > 2 * BYTES_MAX) rows = new byte[BYTES_MAX];
    while (count < ROWS_MAX && (waiting != null || input.hasNext())) {
      UnsafeRow row = waiting != null ? waiting : (UnsafeRow) input.next();
      int size = row.getSizeInBytes();
      waiting = count > 0 && (long) used + size > BYTES_MAX ? row : null;
      if (waiting != null) break;
      if (used + size > rows.length) growRows(used, size);
      if (count == places.length) growPlaces();
      copy(row.getBaseObject(), row.getBaseOffset(), rows, START + used, size);
      places[count] = used;
      subpartitions[count] = row.getInt(columns.length - 1);
      measure(used);
      used += size;
      count++;
    }
    for (int at = 0; at < columns.length; at++) {
      columns[at].values = columns[at].texts = columns[at].nullBits = rows;
      columns[at].nulls = nulls[at];
      columns[at].textBytes = textBytes[at];
    }
  }

  private void growRows(int used, int size) {
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
}
