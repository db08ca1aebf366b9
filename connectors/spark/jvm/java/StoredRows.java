// Makes Spark's rows of record batches, each a row with the bytes of one message of Arrow's and eight bytes or
// more behind it. Rows are not copied: each is a view of its values in the message, valid until the next one
// comes. Spark's scan copies the values that a query wants. Spark compiles this text in its executors, as it
// compiles the code that it makes for a query; generics and lambdas are unknown there.

public Object generate(Object[] references) {
  return new StoredRows((String) references[0]);
}

final class StoredRows extends org.apache.spark.sql.execution.BufferedRowIterator {
  private final StoredRow row;
  private scala.collection.Iterator messages;

  public StoredRows(String layout) {
    row = new StoredRow(layout.getBytes());
  }

  public void init(int index, scala.collection.Iterator[] inputs) {
    messages = inputs[0];
  }

  public boolean hasNext() throws java.io.IOException {
    while (row.isLast()) {
      if (!messages.hasNext()) return false;
      row.open(((InternalRow) messages.next()).getBinary(0));
    }
    return true;
  }

  public InternalRow next() {
    row.advance();
    return row;
  }

  protected void processNext() {}
}

final class StoredRow extends GenericInternalRow {
  private static final int START = Platform.BYTE_ARRAY_OFFSET;

  private final byte[] kinds;
  private final boolean[] hasNulls;
  private final int[] bitmaps;  // places in the message
  private final int[] values;
  private final int[] texts;
  private byte[] message;
  private int count;
  private int at;

  StoredRow(byte[] kinds) {
    super(new Object[kinds.length]);
    this.kinds = kinds;
    hasNulls = new boolean[kinds.length];
    bitmaps = new int[kinds.length];
    values = new int[kinds.length];
    texts = new int[kinds.length];
  }

  void open(byte[] bytes) {
    message = bytes;
    at = -1;
    java.nio.ByteBuffer buffer = java.nio.ByteBuffer.wrap(bytes);
    int body = 8 + Platform.getInt(bytes, START + 4);
    buffer.position(8);
    org.apache.arrow.flatbuf.RecordBatch batch = new org.apache.arrow.flatbuf.RecordBatch();
    org.apache.arrow.flatbuf.Message.getRootAsMessage(buffer).header(batch);
    count = (int) batch.length();
    int next = 0;
    for (int column = 0; column < kinds.length; column++) {
      hasNulls[column] = batch.nodes(column).nullCount() > 0;
      if (kinds[column] == 'n') continue;
      bitmaps[column] = body + (int) batch.buffers(next++).offset();
      values[column] = body + (int) batch.buffers(next++).offset();
      if (kinds[column] == 't') texts[column] = body + (int) batch.buffers(next++).offset();
    }
  }

  boolean isLast() {
    return at + 1 >= count;
  }

  void advance() {
    at++;
  }

  public boolean isNullAt(int column) {
    return hasNulls[column] && (kinds[column] == 'n' || (message[bitmaps[column] + (at >> 3)] >> (at & 7) & 1) == 0);
  }

  public boolean getBoolean(int column) {
    return (message[values[column] + (at >> 3)] >> (at & 7) & 1) != 0;
  }

  public byte getByte(int column) {
    return message[values[column] + at];
  }

  public short getShort(int column) {
    return Platform.getShort(message, START + values[column] + 2L * at);
  }

  public int getInt(int column) {
    return Platform.getInt(message, START + values[column] + 4L * at);
  }

  public long getLong(int column) {
    return Platform.getLong(message, START + values[column] + 8L * at);
  }

  public float getFloat(int column) {
    return Platform.getFloat(message, START + values[column] + 4L * at);
  }

  public double getDouble(int column) {
    return Platform.getDouble(message, START + values[column] + 8L * at);
  }

  // Arrow's decimals: sixteen bytes, the lowest first. Java's numbers: the highest first.
  public Decimal getDecimal(int column, int precision, int scale) {
    byte[] number = new byte[16];
    int from = values[column] + 16 * at;
    for (int to = 0; to < 16; to++) number[to] = message[from + 15 - to];
    java.math.BigDecimal decimal = new java.math.BigDecimal(new java.math.BigInteger(number), scale);
    return Decimal.apply(decimal, precision, scale);
  }

  public UTF8String getUTF8String(int column) {
    int begin = end(column, at - 1);
    return UTF8String.fromBytes(message, texts[column] + begin, end(column, at) - begin);
  }

  public byte[] getBinary(int column) {
    int begin = end(column, at - 1);
    int from = texts[column] + begin;
    return java.util.Arrays.copyOfRange(message, from, from + end(column, at) - begin);
  }

  // Called for all that is not above, as a copy of the row, whose types it does not know.
  public Object genericGet(int column) {
    throw new UnsupportedOperationException("a stored row has only typed values: project it first");
  }

  private int end(int column, int row) {
    return Platform.getInt(message, START + values[column] + 4L * (row + 1));
  }
}
