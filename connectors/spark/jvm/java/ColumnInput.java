// The columns of a scan's batches, without the rows that Spark would make of them.
final class ColumnInput extends Input {
  private static final int SLICE_ROWS = 512;  // of a batch, whose texts may be large

  private final int[] sources;  // the place in a batch of each column but the last
  private final DataType[] types;
  private final UnsafeProjection number;
  private final BasePredicate condition;  // null if all rows are taken
  private final SQLMetric batchesRead;
  private final SQLMetric rowsRead;
  private final SQLMetric rowsTaken;
  private int textColumns;
  private int valueBytes;  // of a row, without its texts
  private ColumnarBatch batch;
  private int[] taken = new int[0];  // the rows of the batch for which the condition is true
  private int takenCount;
  private int first;  // of these that no run has

  ColumnInput(String layout, Object[] references) {
    super(layout, ROWS_MAX);  // one column after the other
    sources = (int[]) references[1];
    types = (DataType[]) references[2];
    number = UnsafeProjection.create((Expression) references[3]);
    Expression taking = (Expression) references[4];
    condition = taking == null ? null : (BasePredicate) Predicate$.MODULE$.create(taking);
    batchesRead = (SQLMetric) references[5];
    rowsRead = (SQLMetric) references[6];
    rowsTaken = (SQLMetric) references[7];
    for (int at = 0; at < columns.length; at++) {
      Column column = columns[at];
      byte kind = column.kind;
      column.step = kind == 't' || kind == 'd' ? 8 : kind == 'b' ? 1 : kind == 'n' ? 0 : kind - '0';
      column.values = column.texts = column.nullBits = new byte[0];
      valueBytes += (kind == 'd' ? 24 : (int) column.step) + 1;
      if (kind == 't') textColumns++;
    }
  }

  void init(int index, scala.collection.Iterator input) {
    super.init(index, input);
    number.initialize(index);
    if (condition != null) condition.initialize(index);
  }

  protected void take() {
    forgetTexts();
    long textBytes = 0;
    while (count < ROWS_MAX && load()) {
      long left = BYTES_MAX - textBytes - (long) count * valueBytes;
      int rows = Math.min(Math.min(takenCount - first, SLICE_ROWS), ROWS_MAX - count);
      rows = (int) Math.min(rows, left / valueBytes);
      if (rows < 1) break;
      makeRoom(rows);
      left -= (long) rows * valueBytes;
      for (int at = 0, toCome = textColumns; at < sources.length; at++) {
        Column column = columns[at];
        if (column.kind != 't') continue;
        rows = texts(column, batch.column(sources[at]), types[at] instanceof BinaryType, rows, left / toCome--);
        left -= textsEnd(column, count + rows) - textsEnd(column, count);
      }
      if (rows == 0) break;
      for (int at = 0; at < sources.length; at++) {
        Column column = columns[at];
        ColumnVector from = batch.column(sources[at]);
        if (column.kind == 't') textBytes += textsEnd(column, count + rows) - textsEnd(column, count);
        else values(column, from, types[at], rows);
        nulls(column, from, rows);
      }
      numbers(rows);
      first += rows;
      count += rows;
    }
    for (int at = 0; at < sources.length; at++) {
      if (columns[at].kind == 't') columns[at].textBytes = textsEnd(columns[at], count);
    }
  }

  // Loads a batch if no row of the last one is left, and returns false after the last row.
  private boolean load() {
    while (first == takenCount) {
      if (batch != null) batch.closeIfFreeable();
      batch = null;
      first = takenCount = 0;
      if (!input.hasNext()) return false;
      batch = (ColumnarBatch) input.next();
      if (taken.length < batch.numRows()) taken = new int[batch.numRows()];
      for (int row = 0; row < batch.numRows(); row++) {
        if (condition == null || condition.eval(batch.getRow(row))) taken[takenCount++] = row;
      }
      batchesRead.add(1);
      rowsRead.add(batch.numRows());
      if (rowsTaken != null) rowsTaken.add(takenCount);
    }
    return true;
  }

  private void makeRoom(int rows) {
    while (count + rows > places.length) growPlaces();
    for (int at = 0; at < columns.length; at++) {
      Column column = columns[at];
      column.values = atLeast(column.values, column.step * (count + rows));
      column.nullBits = atLeast(column.nullBits, count + rows);
    }
  }

  // Drops the room for texts if it is large: that of each column grows apart, and runs may be large in others.
  private void forgetTexts() {
    long bytes = 0;
    for (int at = 0; at < columns.length; at++) bytes += columns[at].texts.length;
    for (int at = 0; at < columns.length && bytes > 2 * BYTES_MAX; at++) columns[at].texts = new byte[0];
  }

  private static byte[] atLeast(byte[] now, long size) {
    if (size <= now.length) return now;
    return Arrays.copyOf(now, Math.toIntExact(Math.max(size, Math.min(2L * now.length, BYTES_MAX))));
  }

  private void numbers(int rows) {
    for (int row = 0; row < rows; row++) {
      places[count + row] = count + row;
      subpartitions[count + row] = number.apply(batch.getRow(taken[first + row])).getInt(0);
    }
    byte[] to = columns[sources.length].values;
    Platform.copyMemory(subpartitions, Platform.INT_ARRAY_OFFSET + 4L * count, to, START + 4L * count, 4L * rows);
  }

  // Returns where the texts of so many rows end.
  private static long textsEnd(Column column, int rows) {
    if (rows == 0) return 0;
    long text = Platform.getLong(column.values, START + 8L * (rows - 1));
    return (text >>> 32) + (int) text;
  }

  // Adds texts of no more bytes than are left, but for the first of a run, and returns their number.
  private int texts(Column column, ColumnVector from, boolean isBinary, int rows, long left) {
    boolean hasNull = from.hasNull();
    long begin = textsEnd(column, count), used = begin;
    for (int at = 0; at < rows; at++) {
      int row = taken[first + at], size = 0;
      if (!hasNull || !from.isNullAt(row)) {
        UTF8String text = isBinary ? UTF8String.fromBytes(from.getBinary(row)) : from.getUTF8String(row);
        size = text.numBytes();
        if (used + size - begin > left && count + at > 0) return at;
        add(column, used, text.getBaseObject(), text.getBaseOffset(), size);
      }
      Platform.putLong(column.values, START + 8L * (count + at), used << 32 | size);
      used += size;
    }
    return rows;
  }

  // Copies no byte from behind the end: it may not be ours.
  private static void add(Column column, long used, Object from, long at, int size) {
    if (used + size + 8 > column.texts.length) column.texts = atLeast(column.texts, used + size + 8);
    byte[] texts = column.texts;
    long to = START + used;
    if (size > 256) {
      Platform.copyMemory(from, at, texts, to, size);
    } else if (size >= 8) {
      int last = size - 8;
      for (int done = 0; done < last; done += 8) Platform.putLong(texts, to + done, Platform.getLong(from, at + done));
      Platform.putLong(texts, to + last, Platform.getLong(from, at + last));
    } else {
      for (int done = 0; done < size; done++) Platform.putByte(texts, to + done, Platform.getByte(from, at + done));
    }
  }

  private void nulls(Column column, ColumnVector from, int rows) {
    boolean hasNull = from.hasNull();
    for (int at = 0; at < rows; at++) {
      boolean isNull = hasNull && from.isNullAt(taken[first + at]);
      column.nullBits[count + at] = (byte) (isNull ? 1 : 0);
      if (isNull) column.nulls++;
    }
  }

  private void values(Column column, ColumnVector from, DataType type, int rows) {
    boolean hasNull = from.hasNull();
    byte[] to = column.values;
    long place = START + column.step * count;
    int end = first + rows;
    switch (column.kind) {
      case '8':
        if (type instanceof DoubleType) doubles(from, hasNull, end, to, place);
        else if (type instanceof DecimalType) unscaled(from, hasNull, end, to, place, (DecimalType) type);
        else longs(from, hasNull, end, to, place);
        break;
      case '4':
        if (type instanceof FloatType) floats(from, hasNull, end, to, place);
        else ints(from, hasNull, end, to, place);
        break;
      case '2': shorts(from, hasNull, end, to, place); break;
      case '1': bytes(from, hasNull, end, to, place); break;
      case 'b': booleans(from, hasNull, end, to, place); break;
      case 'd': decimals(column, from, hasNull, end, (DecimalType) type); break;
    }
  }

  private void longs(ColumnVector from, boolean hasNull, int end, byte[] to, long place) {
    for (int at = first; at < end; at++, place += 8) {
      int row = taken[at];
      Platform.putLong(to, place, hasNull && from.isNullAt(row) ? 0L : from.getLong(row));
    }
  }

  private void doubles(ColumnVector from, boolean hasNull, int end, byte[] to, long place) {
    for (int at = first; at < end; at++, place += 8) {
      int row = taken[at];
      Platform.putDouble(to, place, hasNull && from.isNullAt(row) ? 0.0 : from.getDouble(row));
    }
  }

  private void unscaled(ColumnVector from, boolean hasNull, int end, byte[] to, long place, DecimalType type) {
    int precision = type.precision(), scale = type.scale();
    for (int at = first; at < end; at++, place += 8) {
      int row = taken[at];
      long value = hasNull && from.isNullAt(row) ? 0L : from.getDecimal(row, precision, scale).toUnscaledLong();
      Platform.putLong(to, place, value);
    }
  }

  private void ints(ColumnVector from, boolean hasNull, int end, byte[] to, long place) {
    for (int at = first; at < end; at++, place += 4) {
      int row = taken[at];
      Platform.putInt(to, place, hasNull && from.isNullAt(row) ? 0 : from.getInt(row));
    }
  }

  private void floats(ColumnVector from, boolean hasNull, int end, byte[] to, long place) {
    for (int at = first; at < end; at++, place += 4) {
      int row = taken[at];
      Platform.putFloat(to, place, hasNull && from.isNullAt(row) ? 0.0f : from.getFloat(row));
    }
  }

  private void shorts(ColumnVector from, boolean hasNull, int end, byte[] to, long place) {
    for (int at = first; at < end; at++, place += 2) {
      int row = taken[at];
      Platform.putShort(to, place, hasNull && from.isNullAt(row) ? (short) 0 : from.getShort(row));
    }
  }

  private void bytes(ColumnVector from, boolean hasNull, int end, byte[] to, long place) {
    for (int at = first; at < end; at++, place++) {
      int row = taken[at];
      Platform.putByte(to, place, hasNull && from.isNullAt(row) ? (byte) 0 : from.getByte(row));
    }
  }

  private void booleans(ColumnVector from, boolean hasNull, int end, byte[] to, long place) {
    for (int at = first; at < end; at++, place++) {
      int row = taken[at];
      Platform.putBoolean(to, place, !(hasNull && from.isNullAt(row)) && from.getBoolean(row));
    }
  }

  private void decimals(Column column, ColumnVector from, boolean hasNull, int end, DecimalType type) {
    long used = textsEnd(column, count);
    for (int at = first; at < end; at++) {
      int row = taken[at], size = 0;
      if (!hasNull || !from.isNullAt(row)) {
        Decimal number = from.getDecimal(row, type.precision(), type.scale());
        byte[] bytes = number.toJavaBigDecimal().unscaledValue().toByteArray();
        size = bytes.length;
        add(column, used, bytes, START, size);
      }
      Platform.putLong(column.values, START + 8L * (count + at - first), used << 32 | size);
      used += size;
    }
  }
}
