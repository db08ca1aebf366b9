// Makes calls that Python has written down, one after the other, and answers once. `gateway/calls_together.py`
// writes them. Without it, Python would wait for the answer to each call before it sends the next one.
//
// The first line has the numbers of the calls whose results Python wants. Then each call has a line for its
// target, a line for its method, one for each argument, and an "e". A call without a method makes an object
// of a class. "$3" is the result of the call number 3; everything else is written as py4j writes it.

public Object generate(Object[] references) {
  return new CallsTogether((py4j.Gateway) references[0]);
}

public final class CallsTogether implements java.util.function.Function {
  private final py4j.Gateway gateway;

  public CallsTogether(py4j.Gateway gateway) {
    this.gateway = gateway;
  }

  public Object apply(Object calls) {
    String[] lines = ((String) calls).split("\n");
    java.util.ArrayList results = new java.util.ArrayList();
    java.util.HashSet wanted = new java.util.HashSet();
    try {
      for (int at = 1; at < lines.length; at++) {
        String target = lines[at++], method = lines[at++];
        java.util.ArrayList arguments = new java.util.ArrayList();
        for (; !lines[at].equals("e"); at++) arguments.add(argument(lines[at], results));
        if (isResult(target)) target = result(target, results).getName();
        py4j.ReturnObject result = method.isEmpty() ? gateway.invoke(target, arguments) : gateway.invoke(method, target, arguments);
        results.add(result);
        if (result.isError()) throw (Throwable) gateway.getObject(result.getName());
      }
      StringBuilder answer = new StringBuilder();
      for (java.util.StringTokenizer numbers = new java.util.StringTokenizer(lines[0]); numbers.hasMoreTokens();) {
        py4j.ReturnObject result = result(numbers.nextToken(), results);
        wanted.add(result.getName());
        answer.append(py4j.Protocol.getOutputCommand(result));
      }
      return answer.toString();
    } catch (Throwable failure) {
      wanted.clear();
      boolean isOfCall = failure instanceof py4j.Py4JException && failure.getCause() != null;
      Platform.throwException(isOfCall ? failure.getCause() : failure);
      return null;
    } finally {
      for (int at = 0; at < results.size(); at++) {
        String name = ((py4j.ReturnObject) results.get(at)).getName();
        if (name != null && !wanted.contains(name)) gateway.deleteObject(name);
      }
    }
  }

  private static boolean isResult(String text) {
    return text.charAt(0) == '$';
  }

  private static py4j.ReturnObject result(String text, java.util.ArrayList results) {
    return (py4j.ReturnObject) results.get(Integer.parseInt(text.substring(1)));
  }

  private Object argument(String text, java.util.ArrayList results) {
    if (!isResult(text)) return py4j.Protocol.getObject(text, gateway);
    py4j.ReturnObject result = result(text, results);
    return result.getName() != null ? gateway.getObject(result.getName()) : result.getPrimitiveObject();
  }
}
